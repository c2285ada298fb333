# SPDX-License-Identifier: Apache-2.0
"""An attention layer: a gate on the heads' outputs, from each query's token (Qiu et al. 2025).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/gated \\
        --modules=docs/recipes/gated_attention.py --config.model.attention_layer=gated
"""

import flax.linen as nn

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.parameters import Parameter


@ATTENTION_LAYERS.register("gated")
class GatedAttention(MultiHeadAttention):
    """Multiplies each feature of the heads' outputs by a sigmoid of the layer's input x."""

    parameters = (Parameter(r"head_gate/kernel", "matrix", ("model", "heads", "size")),)

    def setup(self):
        super().setup()
        c = self.config
        self.head_gate = Linear((c.d_model,), (c.num_heads, c.d_v), False, c, c.kernel_std)

    def combine(self, heads, x):  # [B, T, H, V], [B, T, D]
        return super().combine(heads, x) * nn.sigmoid(self.head_gate(x))
