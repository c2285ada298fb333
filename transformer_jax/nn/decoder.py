"""The decoder: N layers of self-attention, encoder attention and feed-forward (section 3.1)."""

import flax.linen as nn
import jax
from flax import struct

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import KeysValues, KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.positions import Positions
from transformer_jax.nn.residual import Residual, final_norm


@struct.dataclass
class Memory:
    """What the decoder keeps of the encoder's output: once a sentence, however many its beams.

    Attributes:
      keys_values: for each layer, of S positions.
      mask: bool, broadcasts to [B, 1, T, S]; which source positions a target position looks at.
    """

    keys_values: tuple[KeysValues, ...]
    mask: jax.Array

    def rounded(self, config: TransformerConfig) -> "Memory":
        """To be kept for many steps."""
        return self.replace(keys_values=tuple(x.rounded(config) for x in self.keys_values))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder, feed-forward, each in its residual connection.

    Where there is no encoder, `attends_to_encoder` is False and the second is left out.
    """

    config: TransformerConfig
    attends_to_encoder: bool = True

    def setup(self):
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        if self.attends_to_encoder:
            self.cross_attention = MultiHeadAttention(self.config)
            self.cross_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x,
        positions,
        encoding: Positions,
        mask,
        keys_values: KeysValues | None,
        memory_mask,
        deterministic,
        cache,
    ) -> tuple[jax.Array, KVCache | None]:
        """x [N, T, D] and B sentences' keys and values -> [N, T, D] and the cache grown by T.

        Without an encoder, keys_values and memory_mask are None. N may be a multiple of B: rows of
        one sentence (its beams) share keys and values, as if they were further queries of that
        sentence.
        """
        y = self.self_attention_residual.before(x)
        y, cache = self.self_attention.to_itself(y, positions, encoding, mask, deterministic, cache)
        x = self.self_attention_residual.after(x, y, deterministic)

        if self.attends_to_encoder:
            x = self._attend_to_encoder(x, keys_values, memory_mask, deterministic)

        y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
        return self.feed_forward_residual.after(x, y, deterministic), cache

    def _attend_to_encoder(self, x, keys_values, memory_mask, deterministic):
        key, value = keys_values.by_position()
        y = self.cross_attention_residual.before(x)
        y = y.reshape(key.shape[0], -1, y.shape[-1])  # [B, N / B * T, D]
        y = self.cross_attention(y, key, value, memory_mask, deterministic).reshape(x.shape)
        return self.cross_attention_residual.after(x, y, deterministic)


class Decoder(nn.Module):
    """A stack of `num_layers` layers, behind an encoder or, as in GPT, on their own."""

    config: TransformerConfig
    num_layers: int
    attends_to_encoder: bool = True

    def setup(self):
        self.layers = [
            DecoderLayer(self.config, self.attends_to_encoder, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.final_norm = final_norm(self.config)

    def remember(self, encoded: jax.Array, mask: jax.Array) -> Memory:
        """Projects the encoder's output [B, S, D] to each layer's keys and values."""
        projected = (layer.cross_attention.keys_values(encoded) for layer in self.layers)
        return Memory(tuple(KeysValues.of(key, value) for key, value in projected), mask)

    def __call__(
        self,
        x,
        positions,
        encoding: Positions,
        mask,
        memory: Memory | None,
        deterministic,
        caches=None,
    ) -> tuple[jax.Array, tuple[KVCache, ...] | None]:
        """Embedded tokens x [N, T, D], positions [N, T], mask [N, 1, T, T] -> [N, T, D], caches.

        With caches the mask is theirs, and `mask` may be None; without an encoder, `memory` is.
        """
        grown = []
        keys_values = memory.keys_values if memory else (None,) * self.num_layers
        memory_mask = memory.mask if memory else None
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x, cache = layer(
                x,
                positions,
                encoding,
                mask,
                keys_values[i],
                memory_mask,
                deterministic,
                cache,
            )
            grown.append(cache)
        x = x if self.final_norm is None else self.final_norm(x)
        return x, None if caches is None else tuple(grown)
