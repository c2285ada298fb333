# SPDX-License-Identifier: Apache-2.0
"""An activation, x + sin(x)^2 (Ziyin et al. 2020), and a norm, ScaleNorm (Nguyen and Salazar 2019).

    transformer_jax train --config=quickstart --workdir=runs/snake \\
        --modules=docs/recipes/activation_and_norm.py \\
        --config.model.activation=snake --config.model.norm=scale
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.norms import NORMS


@ACTIVATIONS.register("snake")
def snake(x):
    return x + jnp.square(jnp.sin(x))


@NORMS.register("scale")
class ScaleNorm(nn.Module):
    """g x / |x|, with one learned scale g, initialized to the square root of the width."""

    epsilon: float

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1] ** 0.5
        g = self.param("scale", nn.initializers.constant(width), (1,))
        return g * x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), self.epsilon)
