"""The encoder: N identical layers of self-attention and feed-forward (section 3.1)."""

import flax.linen as nn
import jax

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.positions import Positions
from transformer_jax.nn.residual import Residual, final_norm


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each inside its residual connection."""

    config: TransformerConfig

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x, positions, encoding: Positions, mask, deterministic: bool) -> jax.Array:
        """x [B, S, D], positions [B, S], mask [B, 1, S, S] -> [B, S, D]."""
        y = self.self_attention_residual.before(x)
        y, _ = self.self_attention.to_itself(y, positions, encoding, mask, deterministic)
        x = self.self_attention_residual.after(x, y, deterministic)

        y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
        return self.feed_forward_residual.after(x, y, deterministic)


class Encoder(nn.Module):
    """A stack of `num_layers` layers."""

    config: TransformerConfig
    num_layers: int

    def setup(self):
        self.layers = [EncoderLayer(self.config, name=f"layer_{i}") for i in range(self.num_layers)]
        self.final_norm = final_norm(self.config)

    def __call__(self, x, positions, encoding: Positions, mask, deterministic: bool) -> jax.Array:
        """Embedded tokens x [B, S, D], positions [B, S], mask [B, 1, S, S] -> [B, S, D]."""
        for layer in self.layers:
            x = layer(x, positions, encoding, mask, deterministic)
        return x if self.final_norm is None else self.final_norm(x)
