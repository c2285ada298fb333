"""A decoder without an encoder: GPT (Radford et al. 2018, 2019).

B batch, T tokens, D model, V vocabulary; N = B x samples while decoding.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.embeddings import Embedding, InputEmbedding
from transformer_jax.nn.masks import look_ahead_mask, segment_mask


class DecoderOnly(nn.Module):
    """Predicts each token from those before it.

    `prefill` and `decode_step` are the seam of `decoding/`. The defaults are the options of GPT-2.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.norm_placement": "pre",
        "model.activation": "gelu",
        "model.positions": "learned",
        "model.attention_bias": "all",
        "model.initialization": "gpt2",
        "model.scale_embeddings": False,
    }
    config: TransformerConfig

    def setup(self):
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, causal=True)
        self.decoder = Decoder(c, c.num_layers, attends_to_encoder=False)
        tied = c.tie_embeddings != "none"
        self.projection = self.embedding if tied else Embedding(c, c.vocab_size)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits of the token after each position of packed rows.

        Args:
          tokens, positions, segment_ids: int32 [B, T].
          deterministic: no dropout; otherwise the rng stream "dropout" is asked for.

        Returns:
          float32 [B, T, V].
        """
        x = self.features(tokens, positions, segment_ids, deterministic)
        return self.projection.logits(x)

    def features(self, tokens, positions, segment_ids, deterministic: bool = True) -> jax.Array:
        """The decoder's output for packed rows [B, T] -> [B, T, D]."""
        x = self.input(self.embedding.embed(tokens), positions, deterministic)
        mask = look_ahead_mask(tokens.shape[1]) & segment_mask(segment_ids, segment_ids)
        x, _ = self.decoder(x, positions, self.input.positions, mask, None, deterministic)
        return x

    def prefill(
        self, prompt: jax.Array, prompt_lengths: jax.Array, max_length: int
    ) -> tuple[jax.Array, tuple[()], tuple[KVCache, ...]]:
        """Reads prompts of unequal length in one batch.

        Args:
          prompt: int32 [B, P].
          prompt_lengths: int32 [B], in 1..P; what lies beyond is not looked at.
          max_length: positions to make room for, the prompt's included.

        Returns:
          logits of the first token after the prompt [B, V], the memory, which is empty, and the
          decoding state (axis 0 of every leaf is B).
        """
        empty = KVCache.empty(self.config, prompt.shape[0], max_length)
        x, state = self._decode(prompt, (empty,) * self.config.num_layers)
        last = jnp.take_along_axis(x, prompt_lengths[:, None, None] - 1, axis=1)
        state = tuple(cache.replace(length=prompt_lengths) for cache in state)
        return self.projection.logits(last)[:, 0], (), state

    def decode_step(
        self, tokens: jax.Array, memory: tuple[()], state: tuple[KVCache, ...]
    ) -> tuple[jax.Array, tuple[KVCache, ...]]:
        """One more token a row: int32 [N] -> logits of the next [N, V], the state grown by one."""
        x, state = self._decode(tokens[:, None], state)
        return self.projection.logits(x)[:, 0], state

    def _decode(self, tokens, caches):
        positions = caches[0].next_positions(tokens.shape[1])  # [N, T]
        x = self.input(self.embedding.embed(tokens), positions, True)
        return self.decoder(x, positions, self.input.positions, None, None, True, caches)
