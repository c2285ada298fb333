# SPDX-License-Identifier: Apache-2.0
"""A model without norms, or without feed-forward layers: to see what they do.

    transformer_jax train --config=lecture_gpt --workdir=runs/bare \\
        --modules=experiments/claims/modules/without_parts.py \\
        --config.model.norm=none --config.model.feed_forward=none
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.nn.layers import FEED_FORWARDS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.sublayers import FeedForwardLayer


@NORMS.register("none")
class NoNorm(nn.Module):
    """Returns x."""

    epsilon: float

    def __call__(self, x):
        return x


@FEED_FORWARDS.register("none")
class NoFeedForward(FeedForwardLayer):
    """Leaves the residual stream as it is."""

    def __call__(self, x, deterministic, real=None):
        return jnp.zeros_like(x) if self.config.residual_connections else x
