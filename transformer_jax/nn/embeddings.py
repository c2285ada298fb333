# SPDX-License-Identifier: Apache-2.0
"""Token embeddings and the pre-softmax projection that may share their matrix (section 3.4).

B batch, T tokens, D model, V vocabulary, R rows of its table (`model.vocab_multiple`).
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.masks import PerToken
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.ops import einsum, product, product_dtype, soft_cap
from transformer_jax.nn.positions import encoding_class
from transformer_jax.runtime import platform


class Unprojected(struct.PyTreeNode):
    """Final hidden states and the matrix that projects them to logits, x E^T + c, so that a loss
    can compute these tile by tile (`losses.tiled_token_losses`).

    Attributes:
      table: E [R, D], an array or, at inference, an `Int8Matrix`; rows beyond V are padding and
        have no logits.
      bias: c; None: no bias.
    """

    x: Float[Array, "*B D"]
    table: Any
    bias: Float[Array, " R"] | None
    dtype: jnp.dtype = struct.field(pytree_node=False)
    vocab_size: int = struct.field(pytree_node=False)
    cap: float | None = struct.field(pytree_node=False, default=None)

    def logits(self, exact: bool = True) -> Float[Array, "*B V"]:
        """Projects the hidden states to logits. Unless `exact`, they are rounded to `dtype`,
        which is faster in training."""
        flat = self.x.reshape(-1, self.x.shape[-1])
        with jax.named_scope("logits"):
            if isinstance(self.table, Int8Matrix):
                logits = self.table.product(flat)
            else:
                logits = einsum("nd,vd->nv", flat, self.table, self.dtype, exact)
            logits = logits[:, : self.vocab_size].reshape(*self.x.shape[:-1], self.vocab_size)
            if self.bias is not None:
                logits += self.bias[: self.vocab_size]
            return soft_cap(logits, self.cap)


class Embedding(nn.Module):
    """Table [R, D] that maps tokens to vectors, and hidden states to logits."""

    config: TransformerConfig
    vocab_size: int

    def setup(self) -> None:
        table: Any = self.get_variable("params", "table")
        if not isinstance(table, Int8Matrix):
            table = self.param("table", self._initial_table)
        self.table = table

    def _initial_table(self, key: Array) -> Float[Array, "R D"]:
        init = nn.initializers.normal(self.config.embedding_std)
        padding = self.config.padded_vocab_size(self.vocab_size) - self.vocab_size
        table = init(key, (self.vocab_size, self.config.d_model))
        return jnp.pad(table, ((0, padding), (0, 0))) if padding else table

    def embed(self, tokens: PerToken) -> Float[Array, "B T D"]:
        """Rows of tokens, times sqrt(d_model) if `scale_embeddings` is set."""
        scale = self.config.d_model**0.5 if self.config.scale_embeddings else 1.0
        dtype = activation_dtype(self.config)
        if isinstance(self.table, Int8Matrix):
            return (self.table.rows(tokens) * scale).astype(dtype)
        return gather_rows(self.table, tokens, dtype) * scale

    def unprojected(
        self, x: Float[Array, "B T D"], bias: Float[Array, " R"] | None = None
    ) -> Unprojected:
        """Pairs hidden states with this table, divided by sqrt(d_model) if `scale_logits` is
        set."""
        c = self.config
        x = x * c.d_model**-0.5 if c.scale_logits else x
        dtype = product_dtype(c.dtype)
        return Unprojected(x, self.table, bias, dtype, self.vocab_size, c.final_logit_cap)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def gather_rows(
    table: Float[Array, "V D"], tokens: Int[Array, "*B"], dtype: DTypeLike
) -> Float[Array, "*B D"]:
    """Rows of a table in `dtype`, rounded before the gather, so that a sharded table travels in it.
    The gradient is added up in float32."""
    return jnp.take(table.astype(dtype), tokens, axis=0)


@gather_rows.defjvp
def _gather_rows_tangent(
    dtype: DTypeLike, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    tokens = primals[1]
    if platform.needs_fixed_order():
        # The transpose of a gather adds with atomics. Made to add in order, XLA sorts all numbers
        # of the gradient one by one (experiments/results/devices.md).
        one_hot = jax.nn.one_hot(tokens, tangents[0].shape[0], dtype=dtype)
        tangent = product("...v,vd->...d", one_hot, tangents[0], dtype, exact=True)
    else:
        tangent = jnp.take(tangents[0], tokens, axis=0)
    return gather_rows(*primals, dtype), tangent.astype(dtype)


def output_embedding(embedding: Embedding) -> Embedding:
    """The table that gives logits: that of a model's outputs, or one of its own if the config does
    not tie them."""
    c = embedding.config
    is_tied = c.tie_embeddings in ("all", "target")
    return embedding if is_tied else Embedding(c, embedding.vocab_size)


class InputEmbedding(nn.Module):
    """Input of a stack: embedded tokens plus positions, and BERT's token types and norm.

    Attributes:
      causal: True for a decoder's position encoding.
    """

    config: TransformerConfig
    causal: bool

    def setup(self) -> None:
        c = self.config
        self.position_encoding = encoding_class(c)(c, self.causal, name="positions")
        if c.num_token_types:
            init = nn.initializers.normal(c.embedding_std)
            self.token_types = self.param("token_types", init, (c.num_token_types, c.d_model))
        if c.embedding_norm:
            self.norm = make_norm(c)
        self.dropout = Dropout.of(c, "embedding_dropout_rate")

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: PerToken,
        deterministic: bool,
        types: PerToken | None = None,
    ) -> Float[Array, "B T D"]:
        """Adds positions and, if given, token types; then norm and dropout."""
        dtype = x.dtype
        x = self.position_encoding.embed(x, positions)
        if types is not None:
            x += jnp.take(self.token_types, types, axis=0, mode="clip")
        if self.config.embedding_norm:
            x = self.norm(x)
        return self.dropout(x.astype(dtype), deterministic)
