"""The Transformer of "Attention Is All You Need" (figure 1).

B batch, S source, T target, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.decoder import Decoder, Memory
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import Embedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.masks import look_ahead_mask, padding_mask, segment_mask
from transformer_jax.nn.positions import encoding_class


class EncoderDecoder(nn.Module):
    """Encodes a source, decodes a target: the whole model, from tokens to logits.

    `prefill` and `decode_step` are the seam of `decoding/`.

    Raises:
      ValueError: tie_embeddings "all" with vocabularies of two sizes, or an unknown `positions`.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    config: TransformerConfig

    def setup(self):
        c = self.config
        if c.tie_embeddings == "all" and c.source_vocab_size != c.target_vocab_size:
            raise ValueError("tie_embeddings 'all' asks for one joint vocabulary (tokenizer.joint)")
        self.target_embedding = Embedding(c, c.target_vocab_size)
        self.source_embedding = (
            self.target_embedding
            if c.tie_embeddings == "all"
            else Embedding(c, c.source_vocab_size)
        )
        self.projection = (
            self.target_embedding
            if c.tie_embeddings != "none"
            else Embedding(c, c.target_vocab_size)
        )
        self.source_positions = encoding_class(c)(c)
        self.target_positions = encoding_class(c)(c, causal=True)
        self.embedding_dropout = Dropout(c.dropout_rate)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)

    def __call__(
        self,
        source: jax.Array,
        source_positions: jax.Array,
        source_segment_ids: jax.Array,
        target: jax.Array,
        target_positions: jax.Array,
        target_segment_ids: jax.Array,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits of the token after each target position, for packed rows.

        Args:
          source: tokens, int32 [B, S]; its positions and segment ids likewise.
          target: decoder inputs, int32 [B, T] (a sentence shifted right behind BOS); likewise.
          deterministic: no dropout; otherwise the rng stream "dropout" is asked for.

        Returns:
          float32 [B, T, V].
        """
        encoded = self.encode(source, source_positions, source_segment_ids, deterministic)
        memory_mask = segment_mask(target_segment_ids, source_segment_ids)
        memory = self.decoder.remember(encoded, memory_mask)
        mask = look_ahead_mask(target.shape[1]) & segment_mask(
            target_segment_ids, target_segment_ids
        )
        x = self._embed_target(target, target_positions, deterministic)
        x, _ = self.decoder(x, target_positions, self.target_positions, mask, memory, deterministic)
        return self.projection.logits(x)

    def encode(self, source, positions, segment_ids, deterministic: bool = True) -> jax.Array:
        """The encoder's output for tokens, positions and segment ids [B, S] -> [B, S, D]."""
        x = self.source_embedding.embed(source)
        x = self.embedding_dropout(self.source_positions.embed(x, positions), deterministic)
        mask = segment_mask(segment_ids, segment_ids)
        return self.encoder(x, positions, self.source_positions, mask, deterministic)

    def prefill(
        self, source: jax.Array, prompt: jax.Array, prompt_lengths: jax.Array, max_length: int
    ) -> tuple[jax.Array, Memory, tuple[KVCache, ...]]:
        """Encodes sources padded with 0 and decodes the prompts, of unequal length, in one batch.

        Args:
          source: int32 [B, S], one sentence a row; tokens 0 are padding.
          prompt: int32 [B, P], what each output starts with: BOS, and tokens forced on it.
          prompt_lengths: int32 [B], in 1..P; what lies beyond is not looked at.
          max_length: positions to make room for, the prompt's included.

        Returns:
          logits of the first token after the prompt [B, V], the memory (axis 0 is B), and the
          decoding state (axis 0 of every leaf is B).
        """
        segment_ids = (source > 0).astype(jnp.int32)
        positions = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        encoded = self.encode(source, positions, segment_ids)
        memory = self.decoder.remember(encoded, padding_mask(segment_ids)).rounded(self.config)
        empty = KVCache.empty(self.config, source.shape[0], max_length)
        x, state = self._decode(prompt, memory, (empty,) * self.config.num_decoder_layers)
        last = jnp.take_along_axis(x, prompt_lengths[:, None, None] - 1, axis=1)
        state = tuple(cache.replace(length=prompt_lengths) for cache in state)
        return self.projection.logits(last)[:, 0], memory, state

    def decode_step(
        self, tokens: jax.Array, memory: Memory, state: tuple[KVCache, ...]
    ) -> tuple[jax.Array, tuple[KVCache, ...]]:
        """One more token a row: int32 [N] -> logits of the next [N, V], the state grown by one."""
        x, state = self._decode(tokens[:, None], memory, state)
        return self.projection.logits(x)[:, 0], state

    def _decode(self, tokens, memory, caches):
        positions = caches[0].next_positions(tokens.shape[1])  # [N, T]
        x = self._embed_target(tokens, positions, deterministic=True)
        return self.decoder(x, positions, self.target_positions, None, memory, True, caches)

    def _embed_target(self, tokens, positions, deterministic):
        x = self.target_positions.embed(self.target_embedding.embed(tokens), positions)
        return self.embedding_dropout(x, deterministic)
