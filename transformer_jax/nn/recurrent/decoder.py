# SPDX-License-Identifier: Apache-2.0
"""Recurrent decoder: a stack of cells that attends to the source (Bahdanau et al. 2015, Luong et
al. 2015), over the whole sentence or around a predicted center.

B sentences, N rows (in a search, the beams of B sentences), T tokens, Q queries of a sentence, S
source tokens, G gates, D model.
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
from transformer_jax.nn.ops import additive_scores, dtype_for_rows, einsum, product_dtype, softmax
from transformer_jax.nn.recurrent.cells import Cell, State, pure_method
from transformer_jax.nn.recurrent.encoder import select_rows, swap_time

Features = Float[Array, "N T D"]
SegmentIds = Int[Array, "N T"]
Encoded = Float[Array, "B S D"]
SourceIds = Int[Array, "B S"]
PerPair = Float[Array, "B Q S"]  # of a query and a source token

SCORES = ("none", "additive", "dot", "general", "concat")
"""Values of `model.attention_score`."""
SPANS = ("global", "local_p")
"""Values of `model.attention_span`."""


class SourceMemory(struct.PyTreeNode):
    """The decoder's keys and values of the encoder's output, one row for each sentence, with
    segment ids and positions of the source tokens. A query sees its own segment."""

    keys: Encoded
    values: Encoded
    segment_ids: SourceIds
    positions: SourceIds

    def mask(self, segment_ids: Int[Array, "B Q"]) -> Bool[Array, "B Q S"]:
        same = segment_ids[:, :, None] == self.segment_ids[:, None]
        return same & (self.segment_ids > 0)[:, None]


class SourceAttention(nn.Module):
    """Attention weights of the source tokens, and the context: the weighted sum of their features.

    The weights are a softmax over the scores of a query h_t (a state of the decoder) and the
    encoder's features h_s:

        dot       h_t . h_s
        general   h_t . W h_s
        concat    v . tanh(W_t h_t + W_s h_s), which is Luong's v . tanh(W [h_t; h_s])
        additive  v . tanh(W_t h_t + W_s h_s), Bahdanau's v . tanh(W_a s + U_a h)

    With a radius R (local-p, Luong et al. 2015, section 3.2) the softmax is over tokens s within R
    of a center p, and the weights are multiplied by exp(-(s - p)^2 / 2 sigma^2), with sigma = R / 2
    and p = S sigmoid(v_p . tanh(W_p h_t)) in a sentence of S tokens. So they need not sum to 1.

    Attributes:
      score: one of `SCORES` except "none".
      radius: R; None: the whole sentence.
    """

    config: TransformerConfig
    score: str
    radius: int | None

    def setup(self) -> None:
        self.is_additive = self.score in ("additive", "concat")
        if self.is_additive:
            self.state = self._linear()
            self.energy = self._vector("energy")
        if self.is_additive or self.score == "general":
            self.source = self._linear()
        if self.radius is not None:
            self.centre = self._linear()
            self.centre_energy = self._vector("centre_energy")

    def _linear(self) -> Linear:
        c = self.config
        return Linear((c.d_model,), (c.d_model,), False, c, c.kernel_std)

    def _vector(self, name: str) -> Float[Array, " D"]:
        size = self.config.d_model
        return self.param(name, nn.initializers.normal(size**-0.5), (size,))

    def remember(
        self, encoded: Encoded, segment_ids: SourceIds, positions: SourceIds
    ) -> SourceMemory:
        """Computes keys of the encoder's output."""
        keys = encoded if self.score == "dot" else self.source(encoded)
        return SourceMemory(keys, encoded, segment_ids, positions)

    def __call__(
        self, query: Features, source: SourceMemory, segment_ids: SegmentIds
    ) -> tuple[Features, PerPair]:
        """Contexts of the decoder's states as queries, and the weights, with the queries of a
        sentence's rows one row after the other."""
        rows = len(source.keys)
        shape = query.shape
        query = query.reshape(rows, -1, query.shape[-1])
        weights = self._weights(query, source, source.mask(segment_ids.reshape(rows, -1)))
        dtype = dtype_for_rows(query.shape[1], product_dtype(self.config.dtype))
        context = einsum("bqs,bsd->bqd", weights, source.values, dtype)
        return context.astype(query.dtype).reshape(shape), weights

    def weigh(self, weights: Float[Array, "B 1 T S"]) -> Float[Array, "B 1 T S"]:
        """Returns the weights unchanged, for hooks that read them."""
        return weights

    def _weights(
        self, query: Float[Array, "B Q D"], source: SourceMemory, mask: Bool[Array, "B Q S"]
    ) -> PerPair:
        scores = self._scores(query, source.keys)
        if self.radius is None:
            return softmax(scores, mask)
        energy = jnp.tanh(self.centre(query)) * self.centre_energy
        center = mask.sum(-1) * jax.nn.sigmoid(energy.astype(jnp.float32).sum(-1))
        distance = source.positions[:, None] - center[:, :, None]
        weights = softmax(scores, mask & (jnp.abs(distance) <= self.radius))
        return weights * jnp.exp(-2 * jnp.square(distance / self.radius))

    def _scores(self, query: Float[Array, "B Q D"], keys: Encoded) -> PerPair:
        if self.is_additive:
            return additive_scores(self.state(query), keys, self.energy)
        dtype = dtype_for_rows(query.shape[1], product_dtype(self.config.dtype))
        return einsum("bqd,bsd->bqs", query, keys, dtype)


class DecoderState(struct.PyTreeNode):
    """State of the decoder after the tokens so far.

    Attributes:
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
      masks: dropout factors on the inputs of the L layers above the first; None: no dropout.
      is_first: True at the first token of a sentence; None: no sentence starts here.
      initial: state before the first token of each token's sentence; None: no sentence starts here.
      is_read: False leaves the state unchanged; None: all tokens are read.
    """

    projected: Float[Array, "N T G D"]
    segment_ids: SegmentIds
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
      radius: of local attention; None: attention to whole sentences.
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
        self, encoded: Encoded, segment_ids: SourceIds, positions: SourceIds
    ) -> SourceMemory | None:
        """Computes keys of the encoder's output; None without attention."""
        if self.score == "none":
            return None
        return self.cross_attention.remember(encoded, segment_ids, positions)

    def __call__(
        self,
        x: Features,
        state: DecoderState,
        source: SourceMemory | None,
        segment_ids: SegmentIds,
        deterministic: bool = True,
        **token_inputs: Any,
    ) -> tuple[Features, DecoderState]:
        """Computes features that predict the next token after each, and the state after the last.

        Args:
          source: the memory of their sentences; None without attention.
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
        self, h: Features, source: SourceMemory, segment_ids: SegmentIds
    ) -> tuple[Features, PerPair]:
        """Computes Luong's h~ and the attention weights."""
        context, weights = self.cross_attention(h, source, segment_ids)
        return jnp.tanh(self.attended(jnp.concatenate([context, h], axis=-1))), weights

    def _masks(self, x: Features, deterministic: bool) -> Float[Array, "N T L D"] | None:
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
        """Reads one token of each row. Outputs are h [N, D]; with attention the context or h~, and
        the weights."""
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
    ) -> tuple[Float[Array, "N D"], PerPair]:
        """Calls `attend` for one token of each row."""
        attended, weights = attend(query[:, None], source, token.segment_ids[:, None])
        return attended[:, 0], weights
