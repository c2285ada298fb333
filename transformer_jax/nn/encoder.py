"""The encoder: N identical layers of self-attention and feed-forward (section 3.1)."""

import flax.linen as nn
from jaxtyping import Array, Float

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.depth import is_stacked, scan_layers
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.norms import final_norm
from transformer_jax.nn.residual import Residual
from transformer_jax.nn.sequences import Sequences


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each inside its residual connection.

    `depth` is the number of layers of its stack.
    """

    config: TransformerConfig
    depth: int = 1

    def setup(self) -> None:
        num_sublayers = 2 * self.depth
        self.self_attention = MultiHeadAttention(self.config, num_sublayers)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config, num_sublayers)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self, x: Float[Array, "B S D"], sequences: Sequences, deterministic: bool
    ) -> Float[Array, "B S D"]:
        y = self.self_attention_residual.before(x)
        y, _ = self.self_attention.self_attend(y, sequences, deterministic)
        x = self.self_attention_residual.after(x, y, deterministic)

        y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
        return self.feed_forward_residual.after(x, y, deterministic)


class Encoder(nn.Module):
    """A stack of `num_layers` layers, whose parameters may be stacked (`nn.depth`)."""

    config: TransformerConfig
    num_layers: int

    def setup(self) -> None:
        self.layers = [
            EncoderLayer(self.config.of_layer(i), self.num_layers, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.final_norm = final_norm(self.config)

    def __call__(
        self, x: Float[Array, "B S D"], sequences: Sequences, deterministic: bool
    ) -> Float[Array, "B S D"]:
        """Embedded tokens -> features."""
        if is_stacked(self):
            x = scan_layers(self, lambda layer, x: layer(x, sequences, deterministic), x)
        else:
            for layer in self.layers:
                x = layer(x, sequences, deterministic)
        return x if self.final_norm is None else self.final_norm(x)
