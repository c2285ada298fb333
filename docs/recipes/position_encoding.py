# SPDX-License-Identifier: Apache-2.0
"""A position encoding: KERPLE (Chi et al. 2022), log-distance biases learned per head.

    transformer_jax train --config=quickstart --workdir=runs/kerple \\
        --modules=docs/recipes/position_encoding.py --config.model.positions=kerple
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.parameters import PARAMETERS, Parameter
from transformer_jax.nn.positions import POSITIONS, PositionEncoding

PARAMETERS.append(Parameter(r"positions/kerple", "bias", ("pair", "heads")))


@POSITIONS.register("kerple")
class Kerple(PositionEncoding):
    """Adds -a log(1 + b |distance|) to the logits of self-attention; each head learns a, b > 0."""

    def setup(self):
        shape = (2, self.config.num_heads)
        self.pair = self.param("kerple", nn.initializers.normal(1.0), shape)

    def bias(self, distance):  # [B, T, S] -> [B, H, T, S]
        a, b = jax.nn.softplus(self.pair)[:, :, None, None]
        return -a * jnp.log1p(b * jnp.abs(distance)[:, None])
