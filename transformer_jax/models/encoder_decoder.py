"""The Transformer of "Attention Is All You Need" (figure 1).

B batch, S source, T target, P prompt, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.source_to_target import SourceToTarget, Tokens
from transformer_jax.nn.attention import Sequences
from transformer_jax.nn.attention_inputs import Segments
from transformer_jax.nn.cache import Encoded, KVCache, Memory, after_prompts
from transformer_jax.nn.masks import padding_mask
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.ops import product_dtype
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.transformer import Decoder, Encoder


class EncoderDecoder(SourceToTarget):
    """Encodes a source, decodes a target: the whole model, from tokens to logits.

    `prefill` and `decode_step` are what the searches of `decoding/` call.

    Raises:
      ValueError: source and target share an embedding, and have vocabularies of two sizes, or an
        unknown `positions`.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    reads: ClassVar[Collection[str]] = (
        "model.num_encoder_layers",
        "model.num_decoder_layers",
        "model.logits_bias",
    )

    def setup(self) -> None:
        super().setup()
        c = self.config
        encoding = encoding_class(c)
        self.source_encoding = encoding(c, name="source_positions")
        self.target_encoding = encoding(c, causal=True, name="target_positions")
        if c.embedding_norm:
            self.source_norm, self.target_norm = make_norm(c), make_norm(c)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)

    def features(
        self, source: Tokens, target: Tokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        encoded = self.encode(*source, deterministic)
        seen = Segments(target.segment_ids, source.segment_ids)
        where = (target.positions, target.segment_ids)
        sequences = Sequences.packed(self.target_encoding, *where)
        x = self._embed_target(target.ids, target.positions, deterministic)
        x, _ = self.decoder(x, sequences, Encoded(encoded, seen), deterministic)
        return x

    def encode(
        self,
        source: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for packed rows."""
        embedded = self.source_embedding.embed(source)
        x = self.source_encoding.embed(embedded, positions)
        x = self.source_norm(x) if self.config.embedding_norm else x
        x = self.embedding_dropout(x.astype(embedded.dtype), deterministic)
        sequences = Sequences.packed(self.source_encoding, positions, segment_ids)
        return self.encoder(x, sequences, deterministic)

    def prefill(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        prompt: Int[Array, "B P"],
        prompt_lengths: Int[Array, " B"],
        max_length: int,
    ) -> tuple[Float[Array, "B V"], tuple[Memory, ...], tuple[KVCache, ...]]:
        """Encodes sources and decodes prompts, of unequal length each, in one batch.

        Args:
          source: one sentence a row.
          source_lengths: in 1..S; what lies beyond is padding.
          prompt: what each output starts with: the decoder's first input, and tokens forced on it.
          prompt_lengths: in 1..P; what lies beyond is not read.
          max_length: positions to make room for, those of the prompt included.

        Returns:
          logits of the first token after the prompt, the memory, and the decoding state (axis 0 of
          every leaf of both is B).
        """
        positions = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        segment_ids = (positions < source_lengths[:, None]).astype(jnp.int32)
        encoded = self.encode(source, positions, segment_ids)
        memory = self.decoder.remember(Encoded(encoded, padding_mask(segment_ids)))
        memory = tuple(of_layer.cast(self.config) for of_layer in memory)
        empty = KVCache.empty(self.config, source.shape[0], max_length)
        x, caches = self._decode(prompt, memory, (empty,) * self.config.num_decoder_layers)
        last, caches = after_prompts(x, prompt_lengths, caches)
        return self._projected(last).logits()[:, 0], memory, caches

    def decode_step(
        self, tokens: Int[Array, " N"], memory: tuple[Memory, ...], state: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "N V"], tuple[KVCache, ...]]:
        """One more token a row -> logits of the next, and the state grown by one."""
        x, state = self._decode(tokens[:, None], memory, state)
        return self._projected(x).logits()[:, 0], state

    def kept_bytes(self, length: int) -> int:
        """Bytes that a search keeps of one output of so many tokens: keys and values."""
        c = self.config
        kept = c.num_decoder_layers * c.key_value_heads * (c.d_k + c.d_v)
        return length * kept * product_dtype(c.dtype).itemsize

    def _decode(
        self, tokens: Int[Array, "N T"], memory: tuple[Memory, ...], caches: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "N T D"], tuple[KVCache, ...]]:
        positions = caches[0].next_positions(tokens.shape[1])
        x = self._embed_target(tokens, positions, deterministic=True)
        sequences = Sequences(self.target_encoding, positions, mask=None)
        return self.decoder(x, sequences, memory, True, caches)

    def _embed_target(
        self, tokens: Int[Array, "N T"], positions: Int[Array, "N T"], deterministic: bool
    ) -> Float[Array, "N T D"]:
        embedded = self.target_embedding.embed(tokens)
        x = self.target_encoding.embed(embedded, positions)
        x = self.target_norm(x) if self.config.embedding_norm else x
        return self.embedding_dropout(x.astype(embedded.dtype), deterministic)
