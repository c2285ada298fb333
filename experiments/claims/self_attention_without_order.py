# SPDX-License-Identifier: Apache-2.0
"""Self-attention without positions is permutation-equivariant: it does not know the order.

    transformer_jax claim self_attention_without_order \\
        --workdir=runs/claims/self_attention_without_order

f(x permuted) = f(x) permuted, for multi-head self-attention with initial parameters. The deviation
is relative to f(x). The second row adds the sinusoids of section 3.5 to x.

Tutorials: attention without positions is permutation invariant
([one](https://techielearn.com/tutorials/large-language-models/transformer-architecture/positional-encoding-sequence-information)).
Here: It is equivariant: the outputs are permuted as the inputs are. Only a mean over them would be
invariant.
"""

import jax
import numpy as np

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.positions.absolute import sinusoids
from transformer_jax.nn.sublayers import Sequences

TOKENS = np.arange(16)
CONFIG = TransformerConfig(d_model=32, num_heads=4, positions="none", dtype="float32")


def formula(params, x):
    q, k, v = (np.einsum("td,dhk->thk", x, params[n]["kernel"]) for n in ("query", "key", "value"))
    exponentials = np.exp(np.einsum("thk,shk->hts", q, k) / CONFIG.d_k**0.5)
    heads = np.einsum("hts,shk->thk", exponentials / exponentials.sum(-1, keepdims=True), v)
    return np.einsum("thk,hkd->td", heads, params["output"]["kernel"])


def experiment(seed):
    """Deviations without and with positions."""
    rng, layer = np.random.default_rng(seed), MultiHeadAttention(CONFIG)
    x, order = rng.normal(size=(16, 32)).astype(np.float32), rng.permutation(TOKENS)
    mask = np.ones((1, 1, 16, 16), bool)
    inputs = Sequences(PositionEncoding(CONFIG), TOKENS[None], mask), True
    variables = layer.init(jax.random.key(seed), x[None], *inputs, method="self_attend")

    def attend(x):
        return np.asarray(layer.apply(variables, x[None], *inputs, method="self_attend")[0][0])

    def deviation(added):
        expected = attend(x + added)[order]
        return abs(attend(x[order] + added) - expected).max() / abs(expected).max()

    difference = abs(attend(x) - formula(variables["params"], x)).max()
    return max(deviation(0), difference), deviation(np.asarray(sinusoids(TOKENS, 32)))


def get_claim():
    return dict(
        statement="Self-attention is permutation-equivariant without positions, and only then.",
        rows={"without positions": {}, "with positions": {}},
        experiment=experiment,
        metric="relative deviation from equivariance",
        smallest=0.01,
        source="Lee et al. 2019, Set Transformer; Bloem 2019, Transformers from scratch",
    )
