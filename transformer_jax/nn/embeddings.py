"""Token embeddings and the pre-softmax projection that may share their matrix (section 3.4)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax import precision
from transformer_jax.nn.config import TransformerConfig


class Embedding(nn.Module):
    """A [V, D] table, N(0, 1 / D), used both ways: tokens to vectors and vectors to logits."""

    config: TransformerConfig
    vocab_size: int

    def setup(self):
        d_model = self.config.d_model
        init = nn.initializers.normal(d_model**-0.5)
        self.table = self.param("table", init, (self.vocab_size, d_model))

    def embed(self, tokens: jax.Array) -> jax.Array:
        """The tokens' rows multiplied by sqrt(d_model): [B, T] -> [B, T, D]."""
        return jnp.take(self.table, tokens, axis=0) * self.config.d_model**0.5

    def logits(self, x: jax.Array) -> jax.Array:
        """x E^T: [B, T, D] -> [B, T, V]."""
        dtype = precision.product_dtype(self.config.dtype)
        flat = precision.einsum("nd,vd->nv", x.reshape(-1, x.shape[-1]), self.table, dtype)
        return flat.reshape(*x.shape[:-1], self.vocab_size)
