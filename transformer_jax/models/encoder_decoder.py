# SPDX-License-Identifier: Apache-2.0
"""The Transformer of "Attention Is All You Need" (figure 1).

B batch, S source, T target, P prompt, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.cache import Cache, EncoderOutput, Memory, at_prompt_ends, state_bytes
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import Embedding, Unprojected, output_embedding
from transformer_jax.nn.layers import is_causal
from transformer_jax.nn.masks import PerToken, Segments, padding_mask, row_places
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.ring_attention import balance, restore_order
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.nn.transformer import Decoder, Encoder, init_caches, undivided_reason


class PackedTokens(NamedTuple):
    """Tokens of packed rows, their positions from 0 in each sentence, and the numbers of their
    sentences, from 1; 0 is padding."""

    ids: PerToken
    positions: PerToken
    segment_ids: PerToken

    @classmethod
    def of(
        cls, ids: PerToken, positions: PerToken | None, segment_ids: PerToken | None
    ) -> "PackedTokens":
        return cls(ids, *row_places(ids, positions, segment_ids))


def shift_right(tokens: PerToken, positions: PerToken, start: int) -> PerToken:
    """Inputs of a decoder: `start` where a sentence begins, elsewhere the token before."""
    return jnp.where(positions == 0, start, jnp.roll(tokens, 1, axis=1))


class Seq2Seq(nn.Module):
    """Base class of models from source to target: embeddings, which may be shared, and logits.

    A subclass has `features` and `encode`, and for searches `prefill`, `decode_step` and
    `empty_state`. ValueError if source and target share an embedding, but not their vocabulary.
    """

    config: TransformerConfig | ModelConfig

    def setup(self) -> None:
        c = self.config
        shares_inputs = c.tie_embeddings in ("all", "inputs")
        if shares_inputs and c.source_vocab_size != c.target_vocab_size:
            raise ValueError(
                f"tie_embeddings {c.tie_embeddings!r} needs one joint vocabulary (tokenizer.joint)"
            )
        self.target_embedding = Embedding(c, c.target_vocab_size)
        self.source_embedding = (
            self.target_embedding if shares_inputs else Embedding(c, c.source_vocab_size)
        )
        self.projection = output_embedding(self.target_embedding)
        self.embedding_dropout = Dropout.of(c, "embedding_dropout_rate")
        if c.logits_bias:
            bias_size = c.padded_vocab_size(c.target_vocab_size)
            self.param("logits_bias", nn.initializers.zeros, bias_size)

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B T V"]:
        """Logits of the token after each target position, for the arguments of `unprojected`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(
        self,
        source: Int[Array, "B S"],
        source_positions: Int[Array, "B S"] | None = None,
        source_segment_ids: Int[Array, "B S"] | None = None,
        target: PerToken | None = None,
        target_positions: PerToken | None = None,
        target_segment_ids: PerToken | None = None,
        from_source: Bool[Array, "B T"] | None = None,
        deterministic: bool = True,
    ) -> Unprojected:
        """Hidden states that predict the token after each target position, before the projection.

        Args:
          source: tokens of packed rows, with their positions and segment ids (see
            `nn.masks.row_places` for the defaults).
          target: decoder inputs (sentences shifted right by one start token), with theirs; always
            needed.
          from_source: places that get the encoder's output at the first token of their source
            instead, such as those that predict the length of a target; None: none. Only an
            `EncoderDecoder` takes it.

        Raises:
          TypeError: there is no target.
        """
        if target is None:
            raise TypeError("the model reads source and target; give target=..., the shifted one")
        source_tokens = PackedTokens.of(source, source_positions, source_segment_ids)
        target_tokens = PackedTokens.of(target, target_positions, target_segment_ids)
        if from_source is None:
            return self._project(self.features(source_tokens, target_tokens, deterministic))
        encoded = self.encode(*source_tokens, deterministic)
        x = self.decode_rows(encoded, source_tokens.segment_ids, target_tokens, deterministic)
        is_first = target_tokens.segment_ids[:, :, None] == source_tokens.segment_ids[:, None, :]
        is_first &= (source_tokens.positions == 0)[:, None, :]
        first = is_first.astype(encoded.dtype) @ encoded
        return self._project(jnp.where(from_source[:, :, None], first.astype(x.dtype), x))

    def features(
        self, source: PackedTokens, target: PackedTokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """The decoder's output for packed rows."""
        raise NotImplementedError

    def empty_state(self, rows: int, max_length: int) -> Any:
        """Decoding state before the first token, with capacity for `max_length` tokens a row."""
        raise NotImplementedError

    def state_bytes(self, length: int, num_beams: int = 1) -> int:
        """Bytes of the decoding state of a sentence's hypotheses of `length` tokens."""
        return state_bytes(jax.eval_shape(lambda: self.empty_state(1, length)), num_beams)

    def _project(self, x: Float[Array, "N T D"]) -> Unprojected:
        return self.projection.unprojected(x, self.get_variable("params", "logits_bias"))


class EncoderDecoder(Seq2Seq):
    """The whole model of figure 1, from source and target tokens to logits."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    reads: ClassVar[Collection[str]] = (
        *("model.num_encoder_layers", "model.num_decoder_layers", "model.encoder_window"),
        *("model.logits_bias", "model.pooler_activation"),
    )
    cross_attention: ClassVar[Collection[str]] = ("multi_head",)
    """Entries of `model.attention_layer` that it uses besides the chosen ones."""

    def setup(self) -> None:
        super().setup()
        c = self.config
        encoding = encoding_class(c)
        self.source_encoding = encoding(c, name="source_positions")
        self.target_encoding = encoding(c, is_causal(c), name="target_positions")
        if c.embedding_norm:
            self.source_norm = make_norm(c)
            self.target_norm = make_norm(c)
        self.encoder = Encoder(c.of_encoder, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)

    def features(
        self, source: PackedTokens, target: PackedTokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        encoded = self.encode(*source, deterministic)
        return self.decode_rows(encoded, source.segment_ids, target, deterministic)

    def decode_rows(
        self,
        encoded: Float[Array, "B S D"],
        source_segment_ids: Int[Array, "B S"],
        target: PackedTokens,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for packed rows, from the encoder's."""
        balanced = undivided_reason(self.config) is None
        target = balance(target) if balanced else target
        visible = Segments(target.segment_ids, source_segment_ids)
        sequences = Sequences.packed(
            self.target_encoding, target.positions, target.segment_ids, target.ids, causal=True
        )
        x = self._embed_target(target.ids, target.positions, deterministic)
        x, _ = self.decoder(x, sequences, EncoderOutput(encoded, visible), deterministic)
        return restore_order(x) if balanced else x

    def target_logits(
        self,
        encoded: Float[Array, "B S D"],
        source_segment_ids: Int[Array, "B S"],
        target: PackedTokens,
    ) -> Float[Array, "B T V"]:
        """Logits of a whole target, from the encoder's output: one pass of iterative unmasking."""
        return self._project(self.decode_rows(encoded, source_segment_ids, target)).logits()

    def encode(
        self,
        source: Int[Array, "B S"],
        positions: Int[Array, "B S"] | None = None,
        segment_ids: Int[Array, "B S"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for packed rows."""
        positions, segment_ids = row_places(source, positions, segment_ids)
        embedded = self.source_embedding.embed(source)
        x = self.source_encoding.embed(embedded, positions)
        x = self.source_norm(x) if self.config.embedding_norm else x
        # Positions and norms give float32.
        x = self.embedding_dropout(x.astype(embedded.dtype), deterministic)
        sequences = Sequences.packed(self.source_encoding, positions, segment_ids, source)
        return self.encoder(x, sequences, deterministic)

    def prefill(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        prompt: Int[Array, "B P"],
        prompt_lengths: Int[Array, " B"],
        max_length: int,
    ) -> tuple[Float[Array, "B V"], tuple[Memory, ...], tuple[Cache, ...]]:
        """Encodes sources and decodes prompts, of unequal lengths 1..S and 1..P, in one batch.

        Args:
          source: one sentence a row.
          prompt: start of each output: the decoder's first input, and tokens forced on it.
          max_length: capacity of the caches in tokens, including the prompt.

        Returns:
          logits of the first token after the prompt, the memory, and the decoding state (axis 0 of
          every leaf of both is B).
        """
        return self.prefill_hidden(source, source_lengths, prompt, prompt_lengths, max_length)[:3]

    def prefill_hidden(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        prompt: Int[Array, "B P"],
        prompt_lengths: Int[Array, " B"],
        max_length: int,
    ) -> tuple[Float[Array, "B V"], tuple[Memory, ...], tuple[Cache, ...], Float[Array, "B D"]]:
        """As `prefill`, with the hidden state of each prompt's last token."""
        positions = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        segment_ids = (positions < source_lengths[:, None]).astype(jnp.int32)
        encoded = self.encode(source, positions, segment_ids)
        memory = self.decoder.remember(EncoderOutput(encoded, padding_mask(segment_ids)))
        memory = tuple(layer.cast(self.config) for layer in memory)
        caches = self.empty_state(source.shape[0], max_length)
        real = jnp.arange(prompt.shape[1]) < prompt_lengths[:, None]
        x, caches = self._decode(prompt, memory, caches, real)
        last, caches = at_prompt_ends(x, prompt_lengths, caches)
        return self._project(last).logits()[:, 0], memory, caches, last[:, 0]

    def decode_step(
        self, tokens: Int[Array, "N ..."], memory: tuple[Memory, ...], state: tuple[Cache, ...]
    ) -> tuple[Float[Array, "N ... V"], tuple[Cache, ...]]:
        """Decodes one more token of each row, or T more; returns the logits of the token after each
        of them, and the state."""
        return self.decode_step_hidden(tokens, memory, state)[:2]

    def decode_step_hidden(
        self, tokens: Int[Array, "N ..."], memory: tuple[Memory, ...], state: tuple[Cache, ...]
    ) -> tuple[Float[Array, "N ... V"], tuple[Cache, ...], Float[Array, "N ... D"]]:
        """As `decode_step`, with the hidden state of each token."""
        x, state = self._decode(tokens.reshape(len(tokens), -1), memory, state)
        logits = self._project(x).logits().reshape(*tokens.shape, -1)
        return logits, state, x.reshape(*tokens.shape, -1)

    def empty_state(self, rows: int, max_length: int) -> tuple[Cache, ...]:
        return init_caches(self.config, self.config.num_decoder_layers, rows, max_length)

    def _decode(
        self,
        tokens: Int[Array, "N T"],
        memory: tuple[Memory, ...],
        caches: tuple[Cache, ...],
        real: Bool[Array, "N T"] | None = None,
    ) -> tuple[Float[Array, "N T D"], tuple[Cache, ...]]:
        positions = caches[0].next_positions(tokens.shape[1])
        x = self._embed_target(tokens, positions, deterministic=True)
        sequences = Sequences(self.target_encoding, positions, None, real=real, tokens=tokens)
        return self.decoder(x, sequences, memory, True, caches)

    def _embed_target(
        self, tokens: Int[Array, "N T"], positions: Int[Array, "N T"], deterministic: bool
    ) -> Float[Array, "N T D"]:
        embedded = self.target_embedding.embed(tokens)
        x = self.target_encoding.embed(embedded, positions)
        x = self.target_norm(x) if self.config.embedding_norm else x
        return self.embedding_dropout(x.astype(embedded.dtype), deterministic)
