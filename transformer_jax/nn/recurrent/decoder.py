"""The recurrent decoder: a stack of cells that writes token by token and looks at the source.

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
from transformer_jax.nn.recurrent.attention import Source, SourceAttention
from transformer_jax.nn.recurrent.cells import Cell, State, alone
from transformer_jax.nn.recurrent.encoder import swapped, where_rows


class DecoderState(struct.PyTreeNode):
    """What the decoder knows of the tokens before.

    Attributes:
      layers: the state of each layer's cell.
      attended: h~ [N, D] of the last token, with input feeding.
    """

    layers: tuple[State, ...]
    attended: Float[Array, "N D"] | None

    @classmethod
    def first(cls, layers: tuple[State, ...], input_feeding: bool) -> "DecoderState":
        """That before the first token, from the layers' states."""
        return cls(layers, jnp.zeros_like(layers[0][0]) if input_feeding else None)


class Written(struct.PyTreeNode):
    """What a scan is given, for each target token.

    Attributes:
      projected: what the first layer's cell made of it.
      segment_ids: of its sentence.
      masks: of dropout, which multiply what the L layers above the first read; None: there is no
        dropout.
      first: whether the sentence begins here.
      fresh: the state that it begins with; None: where none begins.
      kept: whether it is read; the state behind another one is that before it. None: all are.
    """

    projected: Float[Array, "N T G D"]
    segment_ids: Int[Array, "N T"]
    masks: Float[Array, "N T L D"] | None = None
    first: Bool[Array, "N T"] | None = None
    fresh: DecoderState | None = None
    kept: Bool[Array, "N T"] | None = None


class RecurrentDecoder(nn.Module):
    """A stack of cells whose last layer attends to the source:

        none      the features of a token are h, the output of the last layer
        additive  before the cells, with the h of the token before as query: the context c enters
                  the first cell beside the token y, and the features are a maxout, max over pairs
                  of W [h; y; c] + b (Bahdanau et al. 2015, A.1.2 and A.2.2, whose W has s_{i-1} for
                  h, where the text has s_i)
        others    behind the cells, with h as query: the features are h~ = tanh(W [c; h]) (Luong et
                  al. 2015, equation 5); with input feeding h~ enters the first cell beside the next
                  token (section 3.3)

    Dropout is done on what each layer reads, and on the features.

    Attributes:
      config: of the model.
      cell: a class of `CELLS`.
      num_layers: of the stack.
      score: one of `SCORES`.
      radius: of the attention; None: it sees whole sentences.
      input_feeding: whether there is.
    """

    config: TransformerConfig
    cell: type[Cell]
    num_layers: int
    score: str
    radius: int | None
    input_feeding: bool

    def setup(self) -> None:
        c, d = self.config, self.config.d_model
        is_fed = self.score == "additive" or self.input_feeding
        self.layers = [
            self.cell(c, d, d, d if is_fed and i == 0 else 0, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.dropout = Dropout(c.dropout_rate, c.dropout_bits)
        if self.score != "none":
            self.cross_attention = SourceAttention(c, self.score, self.radius)
        if self.score == "additive":
            self.maxout = Linear((3 * d,), (d, 2), True, c, c.kernel_std)
        elif self.score != "none":
            self.attended = Linear((2 * d,), (d,), False, c, c.kernel_std)

    @property
    def _attends_within(self) -> bool:
        """Whether the scan attends, token by token; else all queries attend together behind it, as
        nothing else hangs on what they find. The tanh of all pairs would take too much memory."""
        return self.score in ("additive", "concat") or self.input_feeding

    def remember(self, encoded: Float[Array, "B S D"], **where: Int[Array, "B S"]) -> Source | None:
        """The encoder's output as it is attended to, if it is; `where` its tokens stand."""
        return None if self.score == "none" else self.cross_attention.remember(encoded, **where)

    def __call__(
        self,
        x: Float[Array, "N T D"],
        state: DecoderState,
        source: Source | None,
        segment_ids: Int[Array, "N T"],
        deterministic: bool = True,
        **written: Any,
    ) -> tuple[Float[Array, "N T D"], DecoderState]:
        """Features of the next token after each, and the state behind the last.

        Args:
          x: embedded tokens, on which dropout was done.
          state: before the first of them.
          source: what they attend to.
          segment_ids: of the tokens' sentences.
          deterministic: no dropout.
          **written: other fields of `Written`.
        """
        masks = self._masks(x, deterministic)
        tokens = Written(self.layers[0].project(x), segment_ids, masks, **written)
        state, (h, found, weights) = self._scan(tokens, state, source)
        if self.score == "additive":
            joined = jnp.concatenate([h, x, found], axis=-1)
            h = self.maxout(joined).max(axis=-1)
        elif self._attends_within:
            h = found
        elif source is not None:
            h, weights = self.attend(h, source, segment_ids)
        if weights is not None:
            self.cross_attention.weigh(weights.reshape(len(weights), 1, -1, weights.shape[-1]))
        return self.dropout(h, deterministic), state

    def attend(
        self, h: Float[Array, "N T D"], source: Source, segment_ids: Int[Array, "N T"]
    ) -> tuple[Float[Array, "N T D"], Float[Array, "B Q S"]]:
        """Luong's h~, and the weights."""
        context, weights = self.cross_attention(h, source, segment_ids)
        return jnp.tanh(self.attended(jnp.concatenate([context, h], axis=-1))), weights

    def _masks(
        self, x: Float[Array, "N T D"], deterministic: bool
    ) -> Float[Array, "N T L D"] | None:
        """Those of `Written`, drawn for all tokens at once. In the scan, where the backward pass
        drew the bits again, dropout took nearly half of the pass on a CPU."""
        if deterministic or self.dropout.rate == 0 or self.num_layers == 1:
            return None
        ones = jnp.ones((*x.shape[:2], self.num_layers - 1, x.shape[2]), x.dtype)
        return self.dropout(ones, deterministic)

    def _scan(self, tokens: Written, state: DecoderState, source: Source | None) -> Any:
        """The last state, and what `step` found at each token, [N, T, ...]."""
        by_token = jax.tree.map(swapped, tokens)
        if self.is_initializing():
            first = jax.tree.map(lambda leaf: leaf[0], by_token)
            self.step(state, first, source)
        step = alone(self, "step")

        def read(state: DecoderState, token: Written) -> tuple[DecoderState, Any]:
            if token.first is not None and token.fresh is not None:
                state = where_rows(token.first, token.fresh, state)
            after, found = step(state, token, source)
            return after if token.kept is None else where_rows(token.kept, after, state), found

        state, found = jax.lax.scan(read, state, by_token)
        return state, jax.tree.map(swapped, found)

    def step(
        self, state: DecoderState, token: Written, source: Source | None
    ) -> tuple[DecoderState, tuple[Array, Array | None, Array | None]]:
        """Reads one token of each row.

        Returns:
          the state behind it, and h [N, D]; what the attention found, the context or h~; and its
          weights.
        """
        fed, found, weights = state.attended, None, None
        if self.score == "additive":
            query = state.layers[-1][0]
            fed, weights = self._of_token(self.cross_attention, query, source, token)
            found = fed
        layers: list[State] = []
        projected = token.projected
        for i, cell in enumerate(self.layers):
            if i:
                x = layers[-1][0]
                x = x if token.masks is None else x * token.masks[:, i - 1]
                projected = cell.project(x[:, None])[:, 0]
            layers.append(cell.step(state.layers[i], projected, None if i else fed))
        h = layers[-1][0]
        if self._attends_within and self.score != "additive":
            found, weights = self._of_token(self.attend, h, source, token)
        attended = found if self.input_feeding else None
        return DecoderState(tuple(layers), attended), (h, found, weights)

    @staticmethod
    def _of_token(
        attend: Any, query: Float[Array, "N D"], source: Source | None, token: Written
    ) -> tuple[Float[Array, "N D"], Float[Array, "B Q S"]]:
        found, weights = attend(query[:, None], source, token.segment_ids[:, None])
        return found[:, 0], weights
