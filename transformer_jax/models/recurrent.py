# SPDX-License-Identifier: Apache-2.0
"""Recurrent encoder-decoder, with attention or without.

Without attention this is the model of Sutskever et al. 2014, with additive attention that of
Bahdanau et al. 2015, with the other scores that of Luong et al. 2015.

B batch, S source, T target, P prompt, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.config import TRANSFORMER_FIELDS, ModelConfig
from transformer_jax.models.encoder_decoder import PackedTokens, Seq2Seq
from transformer_jax.nn.masks import first_tokens, row_places
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.nn.recurrent.decoder import DecoderState, RecurrentDecoder, SourceMemory
from transformer_jax.nn.recurrent.encoder import DIRECTIONS, LayerStates, RecurrentEncoder

Encoded = Float[Array, "B S D"]
Ids = Int[Array, "B S"]
Memory = SourceMemory | None

RADIUS = 10
"""D of local-p attention (Luong et al. 2015, section 3.2): tokens on either side of the center."""


class RecurrentEncoderDecoder(Seq2Seq):
    """The whole model, from source and target tokens to logits. Each layer of the decoder starts
    from the final state of the encoder's layer."""

    config: ModelConfig

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.num_encoder_layers": 4,
        "model.num_decoder_layers": 4,
        "model.num_heads": 1,
        "model.positions": "none",
    }
    """The depth of Sutskever et al. and of Luong et al., one head of attention, and no positions,
    unless a config sets them."""
    reads: ClassVar[Collection[str]] = (
        *("model.num_encoder_layers", "model.num_decoder_layers", "model.logits_bias"),
        *("model.cell", "model.encoder_direction", "model.attention_score"),
        *("model.attention_span", "model.input_feeding"),
    )
    ignores: ClassVar[Collection[str]] = (*TRANSFORMER_FIELDS, "train.remat")

    def setup(self) -> None:
        super().setup()
        c = self.config
        _check_options(c)
        cell = CELLS.find(c.cell)
        self.encoder = RecurrentEncoder(c, cell, c.num_encoder_layers, c.encoder_direction)
        radius = RADIUS if c.attention_span == "local_p" else None
        self.decoder = RecurrentDecoder(
            c, cell, c.num_decoder_layers, c.attention_score, radius, c.input_feeding
        )

    def features(
        self, source: PackedTokens, target: PackedTokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        memory, states = self._read(*source, deterministic)
        initial = self._initial_states(states, source.segment_ids, target.segment_ids)
        x, _ = self.decoder(
            self._embed(self.target_embedding, target.ids, deterministic),
            _first_state(initial),
            memory,
            target.segment_ids,
            deterministic,
            is_first=first_tokens(target.segment_ids),
            initial=initial,
        )
        return x

    def encode(
        self,
        source: Ids,
        positions: Ids | None = None,
        segment_ids: Ids | None = None,
        deterministic: bool = True,
    ) -> Encoded:
        """The encoder's output for packed rows; `positions` only separate texts."""
        _, segment_ids = row_places(source, positions, segment_ids)
        return self._encode(source, segment_ids, deterministic)[0]

    def prefill(
        self,
        source: Ids,
        source_lengths: Int[Array, " B"],
        prompt: Int[Array, "B P"],
        prompt_lengths: Int[Array, " B"],
        max_length: int,
    ) -> tuple[Float[Array, "B V"], Memory, DecoderState]:
        """As `EncoderDecoder.prefill`; `max_length` is ignored, as the state does not grow."""
        positions = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        segment_ids = (positions < source_lengths[:, None]).astype(jnp.int32)
        memory, states = self._read(source, positions, segment_ids)
        initial = self._initial_states(states, segment_ids, jnp.ones_like(prompt[:, :1]))
        is_read = jnp.arange(prompt.shape[1]) < prompt_lengths[:, None]
        x, state = self._decode(prompt, memory, _first_state(initial), is_read=is_read)
        last = jnp.take_along_axis(x, prompt_lengths[:, None, None] - 1, axis=1)
        return self._project(last).logits()[:, 0], memory, state

    def decode_step(
        self, tokens: Int[Array, " N"], memory: Memory, state: DecoderState
    ) -> tuple[Float[Array, "N V"], DecoderState]:
        """Decodes one more token of each row; returns logits of the next token, and the state."""
        x, state = self._decode(tokens[:, None], memory, state)
        return self._project(x).logits()[:, 0], state

    def empty_state(self, rows: int, max_length: int) -> DecoderState:
        c = self.config
        cell = CELLS.find(c.cell)(c, c.d_model, c.d_model, parent=None)
        return DecoderState.initial((cell.zeros(rows),) * c.num_decoder_layers, c.input_feeding)

    def _read(
        self, source: Ids, positions: Ids, segment_ids: Ids, deterministic: bool = True
    ) -> tuple[Memory, LayerStates]:
        """The decoder's memory of the source, and the encoder's states."""
        encoded, states = self._encode(source, segment_ids, deterministic)
        return self.decoder.remember(encoded, segment_ids, positions), states

    def _encode(
        self, source: Ids, segment_ids: Ids, deterministic: bool
    ) -> tuple[Encoded, LayerStates]:
        x = self._embed(self.source_embedding, source, deterministic)
        return self.encoder(x, segment_ids, deterministic)

    def _initial_states(
        self, states: LayerStates, segment_ids: Ids, wanted: Int[Array, "B T"]
    ) -> DecoderState:
        """The decoder's states before the sentences with the `wanted` ids; leaves are [B, T, D]."""
        layers = self.encoder.final_states(states, segment_ids, wanted)
        return DecoderState.initial(layers, self.config.input_feeding)

    def _decode(
        self, tokens: Int[Array, "N T"], memory: Memory, state: DecoderState, **inputs: Any
    ) -> tuple[Float[Array, "N T D"], DecoderState]:
        """Decodes the next tokens of rows with one sentence each."""
        x = self._embed(self.target_embedding, tokens, deterministic=True)
        return self.decoder(x, state, memory, jnp.ones_like(tokens), True, **inputs)

    def _embed(
        self, embedding: Any, tokens: Int[Array, "N T"], deterministic: bool
    ) -> Float[Array, "N T D"]:
        return self.embedding_dropout(embedding.embed(tokens), deterministic)


def _first_state(states: DecoderState) -> DecoderState:
    """State [B, D] of the first token, from the states [B, T, D] of all tokens."""
    return jax.tree.map(lambda leaf: leaf[:, 0], states)


def _check_options(c: ModelConfig) -> None:
    score = c.attention_score
    if c.d_model % len(DIRECTIONS[c.encoder_direction]):
        raise ValueError(f"d_model is {c.d_model}; it must be even with encoder_direction 'both'")
    if c.num_encoder_layers != c.num_decoder_layers:
        raise ValueError(
            f"num_decoder_layers is {c.num_decoder_layers} and num_encoder_layers "
            f"{c.num_encoder_layers}: each layer of a recurrent decoder starts from the state of "
            "the encoder's; set both to the same number"
        )
    if score in ("none", "additive") and c.input_feeding:
        raise ValueError(
            f"input_feeding is set, but attention_score {score!r} has no vector to feed; use dot, "
            "general or concat"
        )
    if score == "none" and c.attention_span != "global":
        raise ValueError(
            f"attention_span is {c.attention_span!r}, but attention_score 'none' has no attention; "
            "leave attention_span out"
        )
