# SPDX-License-Identifier: Apache-2.0
"""In self-attention without parameters, softmax(x x^T) x, each token attends mostly to itself.

    transformer_jax claim self_attention_diagonal --workdir=runs/claims/self_attention_diagonal

Tutorials begin with this form (Bloem 2019, Transformers from scratch) and show it on random
vectors: here 16 tokens of 16 standard normal numbers. The product of a vector with itself is about
16, products with others are 0 +- 4. Vectors of length 1 are another matter: there even e^1 among
fifteen e^0 is only 15%.
"""

import numpy as np

from transformer_jax.nn.attention import scaled_dot_product_attention

TOKENS, WIDTH = 16, 16


def experiment(seed):
    """Mean weight of the own token, and of all others together."""
    x = np.random.default_rng(seed).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    query, key, one_hot = (each[None, :, None] for each in (x * WIDTH**0.5, x, np.eye(TOKENS)))
    by_module = scaled_dot_product_attention(query, key, one_hot)[0, :, 0]  # the weights
    exponentials = np.exp(x.astype(float) @ x.T)
    by_formula = exponentials / exponentials.sum(1, keepdims=True)
    itself = min(np.diag(weights).mean() for weights in (by_module, by_formula))
    return itself, 1 - itself


def get_claim():
    return dict(
        statement="In self-attention without parameters, each token attends mostly to itself.",
        rows={"itself": {}, "all others": {}},
        experiment=experiment,
        metric="attention weight",
        better="higher",
        smallest=0.1,
        source="Bloem 2019, Transformers from scratch",
    )
