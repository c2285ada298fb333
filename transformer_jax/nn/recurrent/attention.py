# SPDX-License-Identifier: Apache-2.0
"""Attention of a recurrent decoder to the source: the scores of Bahdanau et al. 2015 and of Luong
et al. 2015, over the whole sentence or around a predicted center.

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
"""Values of `model.attention_score`."""
SPANS = ("global", "local_p")
"""Values of `model.attention_span`."""


class SourceMemory(struct.PyTreeNode):
    """The decoder's keys and values of the encoder's output, one row for each sentence.

    Attributes:
      keys: compared with queries.
      values: summed up, weighted by attention.
      segment_ids: of the source tokens; a query sees its own segment.
      positions: of the source tokens, from 0 in each segment.
    """

    keys: Float[Array, "B S D"]
    values: Float[Array, "B S D"]
    segment_ids: Int[Array, "B S"]
    positions: Int[Array, "B S"]

    def mask(self, segment_ids: Int[Array, "B Q"]) -> Bool[Array, "B Q S"]:
        """Mask for queries of these segments."""
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
        vector: Array = self.param(name, nn.initializers.normal(size**-0.5), (size,))
        return vector

    def remember(
        self,
        encoded: Float[Array, "B S D"],
        segment_ids: Int[Array, "B S"],
        positions: Int[Array, "B S"],
    ) -> SourceMemory:
        """Computes keys of the encoder's output."""
        keys = encoded if self.score == "dot" else self.source(encoded)
        return SourceMemory(keys, encoded, segment_ids, positions)

    def __call__(
        self, query: Float[Array, "N T D"], source: SourceMemory, segment_ids: Int[Array, "N T"]
    ) -> tuple[Float[Array, "N T D"], Float[Array, "B Q S"]]:
        """Attends to the source with the decoder's states as queries.

        Returns:
          the contexts, and the weights, with the queries of a sentence's rows one row after the
          other.
        """
        rows = len(source.keys)
        shape = query.shape
        query = query.reshape(rows, -1, query.shape[-1])
        weights = self._weights(query, source, source.mask(segment_ids.reshape(rows, -1)))
        dtype = dtype_for_rows(query.shape[1], product_dtype(self.config.dtype))
        context = einsum("bqs,bsd->bqd", weights, source.values, dtype)
        return context.astype(query.dtype).reshape(shape), weights

    def weigh(self, weights: Float[Array, "B 1 T S"]) -> Float[Array, "B 1 T S"]:
        """Returns the weights of whole rows unchanged, for hooks that read them."""
        return weights

    def _weights(
        self, query: Float[Array, "B Q D"], source: SourceMemory, mask: Bool[Array, "B Q S"]
    ) -> Float[Array, "B Q S"]:
        scores = self._scores(query, source.keys)
        if self.radius is None:
            return softmax(scores, mask)
        energy = jnp.tanh(self.centre(query)) * self.centre_energy
        center = mask.sum(-1) * jax.nn.sigmoid(energy.astype(jnp.float32).sum(-1))
        distance = source.positions[:, None] - center[:, :, None]
        weights = softmax(scores, mask & (jnp.abs(distance) <= self.radius))
        return weights * jnp.exp(-2 * jnp.square(distance / self.radius))

    def _scores(
        self, query: Float[Array, "B Q D"], keys: Float[Array, "B S D"]
    ) -> Float[Array, "B Q S"]:
        if self.is_additive:
            return additive_scores(self.state(query), keys, self.energy)
        dtype = dtype_for_rows(query.shape[1], product_dtype(self.config.dtype))
        return einsum("bqd,bsd->bqs", query, keys, dtype)


@jax.checkpoint
def additive_scores(
    query: Float[Array, "B Q D"], keys: Float[Array, "B S D"], energy: Float[Array, " D"]
) -> Float[Array, "B Q S"]:
    """Computes energy . tanh(query + key) of all pairs.

    The backward pass computes the B Q S D hyperbolic tangents again instead of keeping them.
    """
    pairs = jnp.tanh((query[:, :, None] + keys[:, None]).astype(jnp.float32))
    return (pairs * energy).sum(-1)
