# SPDX-License-Identifier: Apache-2.0
"""A position-wise feed-forward layer is two convolutions of kernel size 1 (section 3.3).

    transformer_jax claim feed_forward_is_convolution \\
        --workdir=runs/claims/feed_forward_is_convolution

The layer, XLA's convolution with the same kernels, and equation 2 for one position after another.
The bound allows for rounding in float32: the three add up in different orders.
"""

import jax
import numpy as np

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward

CONFIG = TransformerConfig(d_model=64, d_ff=256, dtype="float32")
BOUND = 1e-5


def convolution(x, layer):
    kernel = layer["kernel"][None]  # [width 1, in, out]
    return (
        jax.lax.conv_general_dilated(
            x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), precision="highest"
        )
        + layer["bias"]
    )


def experiment(seed):
    """Largest relative deviation of the layer from both others, and its bound."""
    layer, rng = FeedForward(CONFIG), np.random.default_rng(seed)
    x = rng.normal(size=(2, 16, CONFIG.d_model)).astype(np.float32)
    variables = layer.init(jax.random.key(seed), x, True)
    variables = jax.tree.map(lambda p: p + 0.1 * rng.normal(size=p.shape), variables)  # biases
    inner, outer = (variables["params"][name] for name in ("inner", "outer"))
    found = layer.apply(variables, x, True)
    convolved = convolution(jax.nn.relu(convolution(x, inner)), outer)
    one_by_one = np.array([[equation_2(token, inner, outer) for token in row] for row in x])
    return max(abs(found - each).max() / abs(each).max() for each in (convolved, one_by_one)), BOUND


def equation_2(x, inner, outer):
    hidden = np.maximum(0, x @ inner["kernel"] + inner["bias"])
    return hidden @ outer["kernel"] + outer["bias"]


def get_claim():
    return dict(
        statement="A feed-forward layer equals two convolutions of kernel size 1.",
        rows={"deviation": {}, "bound": {}},
        experiment=experiment,
        metric="relative deviation",
        source="Vaswani et al. 2017, section 3.3",
    )
