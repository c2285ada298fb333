"""Position-wise feed-forward networks (section 3.3)."""

import flax.linen as nn
import jax

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.products import product_dtype

ACTIVATIONS = {"relu": nn.relu, "gelu": nn.gelu, "silu": nn.silu}


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2), or with another activation for the maximum.

    Gated (Shazeer 2020): FFN(x) = (activation(x Wg + bg) * (x W1 + b1)) W2 + b2. That third matrix
    makes it half as large again; with 2/3 of d_ff it has as many parameters as without.
    """

    config: TransformerConfig

    def setup(self):
        c = self.config
        dtype = product_dtype(c.dtype)
        self.inner = Linear((c.d_model,), (c.d_ff,), True, dtype, c.kernel_std)
        if c.gated_feed_forward:
            self.gate = Linear((c.d_model,), (c.d_ff,), True, dtype, c.kernel_std)
        self.outer = Linear((c.d_ff,), (c.d_model,), True, dtype, c.residual_std)
        self.dropout = Dropout(c.feed_forward_dropout_rate)

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        activation = ACTIVATIONS[self.config.activation]
        if self.config.gated_feed_forward:
            hidden = activation(self.gate(x)) * self.inner(x)
        else:
            hidden = activation(self.inner(x))
        return self.outer(self.dropout(hidden, deterministic))
