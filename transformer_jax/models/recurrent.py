"""The encoder-decoder before the Transformer: recurrent networks, with attention or without.

Without it, this is the model of Sutskever et al. 2014; with additive attention that of Bahdanau et
al. 2015, with the other scores that of Luong et al. 2015.

B batch, S source, T target, P prompt, D model, V vocabulary; N = B x beams while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.config import OF_TRANSFORMERS, RADIUS, ModelConfig
from transformer_jax.models.source_to_target import SourceToTarget, Tokens
from transformer_jax.nn.recurrent.attention import Source
from transformer_jax.nn.recurrent.cells import CELLS, State
from transformer_jax.nn.recurrent.decoder import DecoderState, RecurrentDecoder
from transformer_jax.nn.recurrent.encoder import DIRECTIONS, RecurrentEncoder, first_tokens

Memory = Source | None


class RecurrentEncoderDecoder(SourceToTarget):
    """Encodes a source, decodes a target: the whole model, from tokens to logits.

    Each layer of the decoder starts from the state in which the encoder's layer has read the
    sentence. `prefill` and `decode_step` are what the searches of `decoding/` call.

    Raises:
      ValueError: as `SourceToTarget`; options that do not go together, or an unknown `cell`.
    """

    config: ModelConfig

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.num_encoder_layers": 4,
        "model.num_decoder_layers": 4,
        "model.num_heads": 1,
        "model.positions": "none",
    }
    """The depth of Sutskever et al. and of Luong et al., which a config that names this
    architecture gets unless it says otherwise; attention of one head, and no positions."""
    reads: ClassVar[Collection[str]] = (
        "model.num_encoder_layers",
        "model.num_decoder_layers",
        "model.logits_bias",
        "model.cell",
        "model.encoder_direction",
        "model.attention_score",
        "model.attention_span",
        "model.attention_radius",
        "model.input_feeding",
    )
    ignores: ClassVar[Collection[str]] = (*OF_TRANSFORMERS, "train.remat")

    def setup(self) -> None:
        super().setup()
        c = self.config
        _check(c)
        cell = CELLS.find(c.cell)
        self.encoder = RecurrentEncoder(c, cell, c.num_encoder_layers, c.encoder_direction)
        radius = c.attention_radius if c.attention_span == "local_p" else None
        self.decoder = RecurrentDecoder(
            c, cell, c.num_decoder_layers, c.attention_score, radius, c.input_feeding
        )

    def features(
        self, source: Tokens, target: Tokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        memory, states = self._read(*source, deterministic)
        fresh = self._fresh(states, source.segment_ids, target.segment_ids)
        x, _ = self.decoder(
            self._embed(self.target_embedding, target.ids, deterministic),
            _at_first(fresh),
            memory,
            target.segment_ids,
            deterministic,
            first=first_tokens(target.segment_ids),
            fresh=fresh,
        )
        return x

    def encode(
        self,
        source: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        deterministic: bool = True,
    ) -> Float[Array, "B S D"]:
        """The encoder's output for packed rows; `positions` are not read."""
        return self._encode(source, segment_ids, deterministic)[0]

    def prefill(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        prompt: Int[Array, "B P"],
        prompt_lengths: Int[Array, " B"],
        max_length: int,
    ) -> tuple[Float[Array, "B V"], Memory, DecoderState]:
        """As `EncoderDecoder.prefill`: encodes sources and decodes prompts, of unequal length each.
        The state does not grow, whatever `max_length` is."""
        positions = jnp.broadcast_to(jnp.arange(source.shape[1]), source.shape)
        segment_ids = (positions < source_lengths[:, None]).astype(jnp.int32)
        memory, states = self._read(source, positions, segment_ids)
        fresh = self._fresh(states, segment_ids, jnp.ones_like(prompt[:, :1]))
        x, state = self._decode(
            prompt,
            memory,
            _at_first(fresh),
            kept=jnp.arange(prompt.shape[1]) < prompt_lengths[:, None],
        )
        last = jnp.take_along_axis(x, prompt_lengths[:, None, None] - 1, axis=1)
        return self._projected(last).logits()[:, 0], memory, state

    def decode_step(
        self, tokens: Int[Array, " N"], memory: Memory, state: DecoderState
    ) -> tuple[Float[Array, "N V"], DecoderState]:
        """One more token a row -> logits of the next, and the state behind it."""
        x, state = self._decode(tokens[:, None], memory, state)
        return self._projected(x).logits()[:, 0], state

    def kept_bytes(self, length: int) -> int:
        """As `SourceToTarget`: the state, which does not grow."""
        c = self.config
        cell = CELLS.find(c.cell)(c, c.d_model, c.d_model, parent=None)
        state = jax.eval_shape(
            lambda: DecoderState.first((cell.zeros(1),) * c.num_decoder_layers, c.input_feeding)
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    def _read(
        self,
        source: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
        deterministic: bool = True,
    ) -> tuple[Memory, list[tuple[State, ...]]]:
        """What the decoder attends to, and the encoder's states."""
        encoded, states = self._encode(source, segment_ids, deterministic)
        where = {"segment_ids": segment_ids, "positions": positions}
        return self.decoder.remember(encoded, **where), states

    def _encode(
        self, source: Int[Array, "B S"], segment_ids: Int[Array, "B S"], deterministic: bool
    ) -> tuple[Float[Array, "B S D"], list[tuple[State, ...]]]:
        x = self._embed(self.source_embedding, source, deterministic)
        return self.encoder(x, segment_ids, deterministic)

    def _fresh(
        self,
        states: list[tuple[State, ...]],
        segment_ids: Int[Array, "B S"],
        wanted: Int[Array, "B T"],
    ) -> DecoderState:
        """The decoder's state before the first token of the sentences with the `wanted` ids; its
        leaves are [B, T, D]."""
        layers = self.encoder.final_states(states, segment_ids, wanted)
        return DecoderState.first(layers, self.config.input_feeding)

    def _decode(
        self, tokens: Int[Array, "N T"], memory: Memory, state: DecoderState, **written: Any
    ) -> tuple[Float[Array, "N T D"], DecoderState]:
        """In a search, where each row is one sentence."""
        x = self._embed(self.target_embedding, tokens, deterministic=True)
        return self.decoder(x, state, memory, jnp.ones_like(tokens), True, **written)

    def _embed(
        self, embedding: Any, tokens: Int[Array, "N T"], deterministic: bool
    ) -> Float[Array, "N T D"]:
        return self.embedding_dropout(embedding.embed(tokens), deterministic)


def _at_first(fresh: DecoderState) -> DecoderState:
    """Of the states [B, T, D] of all tokens those [B, D] of the first."""
    first: DecoderState = jax.tree.map(lambda leaf: leaf[:, 0], fresh)
    return first


def _check(c: ModelConfig) -> None:
    """Raises ValueError where options do not go together."""
    score = c.attention_score
    if c.d_model % len(DIRECTIONS[c.encoder_direction]):
        raise ValueError(
            f"d_model is {c.d_model}; two directions need an even one (encoder_direction 'both')"
        )
    if c.num_encoder_layers != c.num_decoder_layers:
        raise ValueError(
            f"num_decoder_layers is {c.num_decoder_layers} and num_encoder_layers "
            f"{c.num_encoder_layers}: each layer of a recurrent decoder starts from the state of "
            "the encoder's; set both to the same number"
        )
    if score in ("none", "additive") and c.input_feeding:
        raise ValueError(
            f"input_feeding is set, but attention_score {score!r} has no vector to feed; it goes "
            "with dot, general and concat"
        )
    if score == "none" and c.attention_span != "global":
        raise ValueError(
            f"attention_span is {c.attention_span!r}, but attention_score 'none' attends to "
            "nothing; leave it out"
        )
    if c.attention_span == "global" and c.attention_radius != RADIUS:
        raise ValueError(
            f"attention_radius is {c.attention_radius}, but attention_span 'global' has no radius; "
            "set attention_span to local_p"
        )
