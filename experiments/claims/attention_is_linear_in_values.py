# SPDX-License-Identifier: Apache-2.0
"""Attention is linear in the values, but not in queries, keys, or the input of self-attention.

    transformer_jax claim attention_is_linear_in_values \\
        --workdir=runs/claims/attention_is_linear_in_values

Tutorials say that attention is a weighted sum, and that only its softmax is not linear (Bloem 2019,
Transformers from scratch). f is linear if f(2a - 3b) = 2 f(a) - 3 f(b); the deviation is relative
to the right side. The second row is the smallest of the three other deviations.
"""

import numpy as np

from transformer_jax.nn.attention import scaled_dot_product_attention

SHAPE = (16, 32)  # tokens, width


def formula(query, key, value):
    exponentials = np.exp(query @ key.T / SHAPE[1] ** 0.5)
    return exponentials / exponentials.sum(1, keepdims=True) @ value


def module(*inputs):
    return np.asarray(scaled_dot_product_attention(*(x[None, :, None] for x in inputs)))[0, :, 0]


def relative(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def experiment(seed):
    """Deviations from linearity in the values, and in the most linear of the others."""
    q, k, v, a, b = np.random.default_rng(seed).normal(size=(5, *SHAPE)).astype(np.float32)
    parts = [lambda x: module(q, k, x), lambda x: module(x, k, v), lambda x: module(q, x, v)]
    parts.append(lambda x: module(x, x, x))
    values, *others = (relative(f(2 * a - 3 * b), 2 * f(a) - 3 * f(b)) for f in parts)
    return max(values, relative(module(q, k, v), formula(q, k, v))), min(others)


def get_claim():
    return dict(
        statement="Attention is linear in the values, and not in queries, keys or the input.",
        rows={"values": {}, "queries, keys, input": {}},
        experiment=experiment,
        metric="relative deviation from linearity",
        smallest=0.1,
        source="Bloem 2019, Transformers from scratch",
    )
