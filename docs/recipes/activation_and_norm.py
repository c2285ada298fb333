"""An activation, max(0, x)^2 (So et al. 2021), and a norm, ScaleNorm (Nguyen and Salazar 2019).

    python -m transformer_jax train --config=configs/quickstart.py --workdir=runs/primer \\
        --modules=docs/recipes/activation_and_norm.py \\
        --config.model.activation=squared_relu --config.model.norm=scale
"""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.norms import NORMS


@ACTIVATIONS.register("squared_relu")
def squared_relu(x):
    return jnp.square(nn.relu(x))


@NORMS.register("scale")
class ScaleNorm(nn.Module):
    """g x / |x|, with one learned g, which begins as the root of the width."""

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1] ** 0.5
        g = self.param("scale", nn.initializers.constant(width), (1,))
        return g * x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6)
