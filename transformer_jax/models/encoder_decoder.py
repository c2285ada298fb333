"""The Transformer of "Attention Is All You Need" (figure 1).

B batch, S source, T target, P prompt, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.prompt import after_prompts
from transformer_jax.nn.cache import Encoded, KVCache, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import Embedding, Unprojected
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.inputs import Segments
from transformer_jax.nn.masks import padding_mask
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.sequences import Sequences


class EncoderDecoder(nn.Module):
    """Encodes a source, decodes a target: the whole model, from tokens to logits.

    `prefill` and `decode_step` are what the searches of `decoding/` call.

    Raises:
      ValueError: source and target share an embedding, and have vocabularies of two sizes, or an
        unknown `positions`.
    """

    config: TransformerConfig

    defaults: ClassVar[Mapping[str, Any]] = {}
    reads: ClassVar[Collection[str]] = (
        "model.num_encoder_layers",
        "model.num_decoder_layers",
        "model.logits_bias",
    )

    def setup(self) -> None:
        c = self.config
        one_input = c.tie_embeddings in ("all", "inputs")
        if one_input and c.source_vocab_size != c.target_vocab_size:
            raise ValueError(
                f"tie_embeddings {c.tie_embeddings!r} needs one joint vocabulary (tokenizer.joint)"
            )
        self.target_embedding = Embedding(c, c.target_vocab_size)
        self.source_embedding = (
            self.target_embedding if one_input else Embedding(c, c.source_vocab_size)
        )
        self.projection = (
            self.target_embedding
            if c.tie_embeddings in ("all", "target")
            else Embedding(c, c.target_vocab_size)
        )
        encoding = encoding_class(c)
        self.source_encoding = encoding(c, name="source_positions")
        self.target_encoding = encoding(c, causal=True, name="target_positions")
        if c.embedding_norm:
            self.source_norm, self.target_norm = make_norm(c), make_norm(c)
        self.embedding_dropout = Dropout(c.embedding_dropout, c.dropout_bits)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)
        if c.logits_bias:
            self.param("logits_bias", nn.initializers.zeros, c.padded(c.target_vocab_size))

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B T V"]:
        """Logits of the token after each target position; its inputs are those of
        `unprojected`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(
        self,
        source: Int[Array, "B S"],
        source_positions: Int[Array, "B S"],
        source_segment_ids: Int[Array, "B S"],
        target: Int[Array, "B T"],
        target_positions: Int[Array, "B T"],
        target_segment_ids: Int[Array, "B T"],
        deterministic: bool = True,
    ) -> Unprojected:
        """What the logits of the token after each target position are made of, for packed rows.

        Args:
          source: tokens, with their positions and segment ids.
          target: decoder inputs (a sentence shifted right behind a first token), likewise.
          deterministic: no dropout; otherwise the rng stream "dropout" is needed.
        """
        encoded = self.encode(source, source_positions, source_segment_ids, deterministic)
        seen = Segments(target_segment_ids, source_segment_ids)
        sequences = Sequences.packed(self.target_encoding, target_positions, target_segment_ids)
        x = self._embed_target(target, target_positions, deterministic)
        x, _ = self.decoder(x, sequences, Encoded(encoded, seen), deterministic)
        return self._projected(x)

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

    def _projected(self, x: Float[Array, "N T D"]) -> Unprojected:
        """Features with the table that makes logits of them, and the bias where there is one."""
        return self.projection.unprojected(x, self.get_variable("params", "logits_bias"))
