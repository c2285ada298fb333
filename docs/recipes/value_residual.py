# SPDX-License-Identifier: Apache-2.0
"""An attention layer: value residual (Zhou et al. 2024), the first layer's values in every layer.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/values \\
        --modules=docs/recipes/value_residual.py --config.model.attention_layer=value_residual
"""

import flax.linen as nn

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.parameters import Parameter


@ATTENTION_LAYERS.register("value_residual")
class ValueResidual(MultiHeadAttention):
    """The values of layer l are a V_1 + b V_l; a and b are learned, and start at 1/2."""

    parameters = (Parameter(r"self_attention/value_mix", "bias", ("parts",)),)

    def setup(self):
        super().setup()
        self.mix = self.param("value_mix", nn.initializers.constant(0.5), (2,))

    def share(self, x):  # asked of the first layer; all layers get the result
        return self.value(x)

    def reuse(self, value, shared):
        a, b = self.mix.astype(value.dtype)
        return a * shared + b * value
