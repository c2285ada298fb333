"""Attention of a recurrent decoder to the source, with the scores of Bahdanau et al. 2015 and of
Luong et al. 2015, over all of a sentence or around a predicted centre.

B sentences, N rows (in a search, the beams of B sentences), T tokens, Q queries of a sentence, S
source tokens, D model.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.ops import dtype_for_rows, einsum, product_dtype, softmax

SCORES = ("none", "additive", "dot", "general", "concat")
"""What `model.attention_score` may be."""
SPANS = ("global", "local_p")
"""What `model.attention_span` may be."""


class Source(struct.PyTreeNode):
    """The encoder's output as the decoder attends to it, once for each sentence.

    Attributes:
      keys: what queries are compared with.
      values: what is summed.
      segment_ids: of the tokens; a query sees those of its own segment.
      positions: of the tokens, from 0 in each segment.
    """

    keys: Float[Array, "B S D"]
    values: Float[Array, "B S D"]
    segment_ids: Int[Array, "B S"]
    positions: Int[Array, "B S"]

    def seen(self, segment_ids: Int[Array, "B Q"]) -> Bool[Array, "B Q S"]:
        """Which tokens the queries of these segments see."""
        same = segment_ids[:, :, None] == self.segment_ids[:, None]
        return same & (self.segment_ids > 0)[:, None]


class SourceAttention(nn.Module):
    """Weights of the source's tokens, and the context: the sum of the encoder's outputs h_s under
    them. The weights are a softmax over the scores of a query, a decoder's state h_t:

        dot       h_t . h_s
        general   h_t . W h_s
        concat    v . tanh(W_t h_t + W_s h_s), which is Luong's v . tanh(W [h_t; h_s])
        additive  v . tanh(W_t h_t + W_s h_s), Bahdanau's v . tanh(W_a s + U_a h)

    With a radius R (local-p, Luong et al. 2015, section 3.2) they are those of the tokens s within
    R of a centre p, times exp(-(s - p)^2 / 2 sigma^2), where sigma = R / 2 and in a sentence of S
    tokens p = S sigmoid(v_p . tanh(W_p h_t)). So they need not sum to 1.

    Attributes:
      config: of the model.
      score: one of `SCORES`, but "none".
      radius: R; None: the whole sentence.
    """

    config: TransformerConfig
    score: str
    radius: int | None

    def setup(self) -> None:
        self.adds = self.score in ("additive", "concat")
        if self.adds:
            self.state, self.energy = self._linear(), self._vector("energy")
        if self.adds or self.score == "general":
            self.source = self._linear()
        if self.radius is not None:
            self.centre, self.centre_energy = self._linear(), self._vector("centre_energy")

    def _linear(self) -> Linear:
        c = self.config
        return Linear((c.d_model,), (c.d_model,), False, c, c.kernel_std)

    def _vector(self, name: str) -> Float[Array, " D"]:
        size = self.config.d_model
        vector: Array = self.param(name, nn.initializers.normal(size**-0.5), (size,))
        return vector

    def remember(
        self,
        encoded: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        positions: Int[Array, "B S"],
    ) -> Source:
        """The encoder's output, with its part of the scores."""
        keys = encoded if self.score == "dot" else self.source(encoded)
        return Source(keys, encoded, segment_ids, positions)

    def __call__(
        self, query: Float[Array, "N T D"], source: Source, segment_ids: Int[Array, "N T"]
    ) -> tuple[Float[Array, "N T D"], Float[Array, "B Q S"]]:
        """The contexts of queries that belong to these segments, and their weights, where the T
        queries of the rows of a sentence stand one row after the other."""
        rows, dtype = len(source.keys), product_dtype(self.config.dtype)
        shape, query = query.shape, query.reshape(rows, -1, query.shape[-1])
        weights = self._weights(query, source, source.seen(segment_ids.reshape(rows, -1)))
        dtype = dtype_for_rows(query.shape[1], dtype)
        context = einsum("bqs,bsd->bqd", weights, source.values, dtype)
        return context.astype(query.dtype).reshape(shape), weights

    def weigh(self, weights: Float[Array, "B 1 T S"]) -> Float[Array, "B 1 T S"]:
        """The weights of whole rows, as they were used, once they are all there: for those who want
        to see them."""
        return weights

    def _weights(
        self, query: Float[Array, "B Q D"], source: Source, seen: Bool[Array, "B Q S"]
    ) -> Float[Array, "B Q S"]:
        scores = self._scores(query, source.keys)
        if self.radius is None:
            return softmax(scores, seen)
        energy = jnp.tanh(self.centre(query)) * self.centre_energy
        centre = seen.sum(-1) * jax.nn.sigmoid(energy.astype(jnp.float32).sum(-1))
        distance = source.positions[:, None] - centre[:, :, None]
        weights = softmax(scores, seen & (jnp.abs(distance) <= self.radius))
        return weights * jnp.exp(-2 * jnp.square(distance / self.radius))

    def _scores(
        self, query: Float[Array, "B Q D"], keys: Float[Array, "B S D"]
    ) -> Float[Array, "B Q S"]:
        if self.adds:
            return added(self.state(query), keys, self.energy)
        dtype = dtype_for_rows(query.shape[1], product_dtype(self.config.dtype))
        return einsum("bqd,bsd->bqs", query, keys, dtype)


@jax.checkpoint
def added(
    query: Float[Array, "B Q D"], keys: Float[Array, "B S D"], energy: Float[Array, " D"]
) -> Float[Array, "B Q S"]:
    """energy . tanh(query + key) of all pairs. Their B Q S D hyperbolic tangents are not kept for
    the backward pass, which computes them again."""
    pairs = jnp.tanh((query[:, :, None] + keys[:, None]).astype(jnp.float32))
    return (pairs * energy).sum(-1)
