"""A user's position encoding: biases that shrink with the logarithm of the distance, per head."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.parameters import PARAMETERS, Parameter
from transformer_jax.nn.positions import POSITIONS, PositionEncoding

PARAMETERS.append(Parameter(r"positions/log_slope", "bias", ("pair", "heads")))


@POSITIONS.register("log_distance")
class LogDistance(PositionEncoding):
    """Adds -a log(1 + b |distance|) to the logits of self-attention; each head learns a, b > 0."""

    def setup(self):
        shape = (2, self.config.num_heads)
        self.pair = self.param("log_slope", nn.initializers.normal(1.0), shape)

    def bias(self, distance):  # [B, T, S] -> [B, H, T, S]
        a, b = jax.nn.softplus(self.pair)[:, :, None, None]
        return -a * jnp.log1p(b * jnp.abs(distance)[:, None])
