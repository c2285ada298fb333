# SPDX-License-Identifier: Apache-2.0
"""Recurrent decoder: a stack of cells that attends to the source.

B sentences, N rows (in a search, the beams of B sentences), T tokens, S source tokens, G gates, D
model.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.recurrent.attention import SourceAttention, SourceMemory
from transformer_jax.nn.recurrent.cells import Cell, State, pure_method
from transformer_jax.nn.recurrent.encoder import select_rows, swap_time


class DecoderState(struct.PyTreeNode):
    """State of the decoder after the tokens so far.

    Attributes:
      layers: state of each layer's cell.
      attended: with input feeding, the vector h~ [N, D] of the last token.
    """

    layers: tuple[State, ...]
    attended: Float[Array, "N D"] | None

    @classmethod
    def initial(cls, layers: tuple[State, ...], input_feeding: bool) -> "DecoderState":
        """State before the first token, from the states of the layers."""
        return cls(layers, jnp.zeros_like(layers[0][0]) if input_feeding else None)


class TokenInputs(struct.PyTreeNode):
    """Inputs of the scan over target tokens.

    Attributes:
      projected: projections of the first layer's cell.
      masks: dropout factors on the inputs of the L layers above the first; None: no dropout.
      is_first: True at the first token of a sentence; None: no sentence starts here.
      initial: state before the first token of each token's sentence; None: no sentence starts here.
      is_read: False leaves the state unchanged; None: all tokens are read.
    """

    projected: Float[Array, "N T G D"]
    segment_ids: Int[Array, "N T"]
    masks: Float[Array, "N T L D"] | None = None
    is_first: Bool[Array, "N T"] | None = None
    initial: DecoderState | None = None
    is_read: Bool[Array, "N T"] | None = None


class RecurrentDecoder(nn.Module):
    """Stack of cells with attention to the source, by the score:

        none      no attention: the features of a token are h, the output of the last layer
        additive  attention before the cells, with the previous token's h as query: the context c is
                  an input of the first cell, beside the token y, and the features are a maxout, max
                  over pairs of W [h; y; c] + b (Bahdanau et al. 2015, A.1.2 and A.2.2; their W
                  multiplies s_{i-1} instead of h, but their text has s_i)
        others    attention after the cells, with h as query: the features are h~ = tanh(W [c; h])
                  (Luong et al. 2015, equation 5); with input feeding h~ is an input of the first
                  cell, beside the next token (section 3.3)

    Dropout is applied to the input of each layer and to the features.

    Attributes:
      cell: a class of `CELLS`.
      score: one of `SCORES`.
      radius: of local attention; None: attention to whole sentences.
      input_feeding: feeds h~ to the next step.
    """

    config: TransformerConfig
    cell: type[Cell]
    num_layers: int
    score: str
    radius: int | None
    input_feeding: bool

    def setup(self) -> None:
        c = self.config
        d = c.d_model
        has_feedback = self.score == "additive" or self.input_feeding
        self.layers = [
            self.cell(c, d, d, d if has_feedback and i == 0 else 0, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.dropout = Dropout.of(c, "dropout_rate")
        if self.score != "none":
            self.cross_attention = SourceAttention(c, self.score, self.radius)
        if self.score == "additive":
            self.maxout = Linear((3 * d,), (d, 2), True, c, c.kernel_std)
        elif self.score != "none":
            self.attended = Linear((2 * d,), (d,), False, c, c.kernel_std)

    @property
    def _attends_in_scan(self) -> bool:
        """True if attention is computed in the scan, token by token, not for all queries after it.

        With feedback the next step needs its result, and additive scores of all pairs would take
        too much memory.
        """
        return self.score in ("additive", "concat") or self.input_feeding

    def remember(
        self,
        encoded: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        positions: Int[Array, "B S"],
    ) -> SourceMemory | None:
        """Computes keys of the encoder's output; None without attention."""
        if self.score == "none":
            return None
        return self.cross_attention.remember(encoded, segment_ids, positions)

    def __call__(
        self,
        x: Float[Array, "N T D"],
        state: DecoderState,
        source: SourceMemory | None,
        segment_ids: Int[Array, "N T"],
        deterministic: bool = True,
        **token_inputs: Any,
    ) -> tuple[Float[Array, "N T D"], DecoderState]:
        """Computes features that predict the next token after each, and the state after the last.

        Args:
          x: embedded tokens, after dropout.
          state: before the first token.
          source: the memory of their sentences; None without attention.
          **token_inputs: other fields of `TokenInputs`.
        """
        masks = self._masks(x, deterministic)
        tokens = TokenInputs(self.layers[0].project(x), segment_ids, masks, **token_inputs)
        state, (h, attended, weights) = self._scan(tokens, state, source)
        if self.score == "additive":
            joined = jnp.concatenate([h, x, attended], axis=-1)
            h = self.maxout(joined).max(axis=-1)
        elif self._attends_in_scan:
            h = attended
        elif source is not None:
            h, weights = self.attend(h, source, segment_ids)
        if weights is not None:
            self.cross_attention.weigh(weights.reshape(len(weights), 1, -1, weights.shape[-1]))
        return self.dropout(h, deterministic), state

    def attend(
        self, h: Float[Array, "N T D"], source: SourceMemory, segment_ids: Int[Array, "N T"]
    ) -> tuple[Float[Array, "N T D"], Float[Array, "B Q S"]]:
        """Computes Luong's h~ and the attention weights."""
        context, weights = self.cross_attention(h, source, segment_ids)
        return jnp.tanh(self.attended(jnp.concatenate([context, h], axis=-1))), weights

    def _masks(
        self, x: Float[Array, "N T D"], deterministic: bool
    ) -> Float[Array, "N T L D"] | None:
        """Dropout factors of all tokens (`TokenInputs.masks`).

        Dropout in the scan, where the backward pass generates the bits again, took nearly half of
        the pass on a CPU.
        """
        if deterministic or self.dropout.rate == 0 or self.num_layers == 1:
            return None
        ones = jnp.ones((*x.shape[:2], self.num_layers - 1, x.shape[2]), x.dtype)
        return self.dropout(ones, deterministic)

    def _scan(self, tokens: TokenInputs, state: DecoderState, source: SourceMemory | None) -> Any:
        """Runs `step` over all tokens; returns the last state and the outputs [N, T, ...]."""
        by_token = jax.tree.map(swap_time, tokens)
        if self.is_initializing():
            first = jax.tree.map(lambda leaf: leaf[0], by_token)
            self.step(state, first, source)
        step = pure_method(self, "step")

        def read(state: DecoderState, token: TokenInputs) -> tuple[DecoderState, Any]:
            if token.is_first is not None and token.initial is not None:
                state = select_rows(token.is_first, token.initial, state)
            new, outputs = step(state, token, source)
            return new if token.is_read is None else select_rows(token.is_read, new, state), outputs

        state, outputs = jax.lax.scan(read, state, by_token)
        return state, jax.tree.map(swap_time, outputs)

    def step(
        self, state: DecoderState, token: TokenInputs, source: SourceMemory | None
    ) -> tuple[DecoderState, tuple[Array, Array | None, Array | None]]:
        """Reads one token of each row.

        Returns:
          the state after it, and its outputs: h [N, D]; the context or h~, with attention; and the
          attention weights.
        """
        feedback = state.attended
        attended = None
        weights = None
        if self.score == "additive":  # attention comes before the cells
            query = state.layers[-1][0]
            attended, weights = self._attend_one(self.cross_attention, query, source, token)
            feedback = attended
        layers: list[State] = []
        projected = token.projected
        for i, cell in enumerate(self.layers):
            if i:
                x = layers[-1][0]
                x = x if token.masks is None else x * token.masks[:, i - 1]
                projected = cell.project(x[:, None])[:, 0]
            layers.append(cell.step(state.layers[i], projected, None if i else feedback))
        h = layers[-1][0]
        if self._attends_in_scan and self.score != "additive":
            attended, weights = self._attend_one(self.attend, h, source, token)
        state = DecoderState(tuple(layers), attended if self.input_feeding else None)
        return state, (h, attended, weights)

    @staticmethod
    def _attend_one(
        attend: Any, query: Float[Array, "N D"], source: SourceMemory | None, token: TokenInputs
    ) -> tuple[Float[Array, "N D"], Float[Array, "B Q S"]]:
        """Calls `attend` for one token of each row."""
        attended, weights = attend(query[:, None], source, token.segment_ids[:, None])
        return attended[:, 0], weights
