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
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.ops import capped, einsum, product_dtype
from transformer_jax.nn.positions import encoding_class


class Unprojected(struct.PyTreeNode):
    """The last features of a model, and what makes logits of them: x E^T + c, perhaps capped.

    A loss that needs all logits of a token, but not at once, takes these (`tiled_losses`).

    Attributes:
      x: the features.
      table: E [R, D], an array or, of a model that is used and no longer trained, an `Int8Matrix`;
        rows beyond V are padding, which has no logits.
      bias: c, where there is one.
      dtype: of the product.
      vocab_size: V.
      cap: of the logits (`softmax.capped`), where there is one.
    """

    x: Float[Array, "*B D"]
    table: Any
    bias: Float[Array, " R"] | None
    dtype: jnp.dtype = struct.field(pytree_node=False)
    vocab_size: int = struct.field(pytree_node=False)
    cap: float | None = struct.field(pytree_node=False, default=None)

    def logits(self) -> Float[Array, "*B V"]:
        """One for each token of the vocabulary."""
        flat = self.x.reshape(-1, self.x.shape[-1])
        with jax.named_scope("logits"):
            if isinstance(self.table, Int8Matrix):
                logits = self.table.product(flat)
            else:
                logits = einsum("nd,vd->nv", flat, self.table, self.dtype)
            logits = logits[:, : self.vocab_size].reshape(*self.x.shape[:-1], self.vocab_size)
            if self.bias is not None:
                logits += self.bias[: self.vocab_size]
            return capped(logits, self.cap)


class Embedding(nn.Module):
    """An [R, D] table, used both ways: tokens to vectors and vectors to logits."""

    config: TransformerConfig
    vocab_size: int

    def setup(self) -> None:
        table: Any = self.get_variable("params", "table")
        if not isinstance(table, Int8Matrix):
            table = self.param("table", self._fresh)
        self.table = table

    def _fresh(self, key: Array) -> Float[Array, "R D"]:
        drawn = nn.initializers.normal(self.config.embedding_std)
        padding = self.config.padded(self.vocab_size) - self.vocab_size
        table = drawn(key, (self.vocab_size, self.config.d_model))
        return jnp.pad(table, ((0, padding), (0, 0))) if padding else table

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The tokens' rows, multiplied by sqrt(d_model) if so configured, in the dtype of
        activations."""
        scale = self.config.d_model**0.5 if self.config.scale_embeddings else 1.0
        dtype = activation_dtype(self.config)
        if isinstance(self.table, Int8Matrix):
            return (self.table.rows(tokens) * scale).astype(dtype)
        return rows(self.table, tokens, dtype) * scale

    def unprojected(
        self, x: Float[Array, "B T D"], bias: Float[Array, " R"] | None = None
    ) -> Unprojected:
        """Features with this table, whose products they await; divided by sqrt(d_model) if so
        configured."""
        c = self.config
        x = x * c.d_model**-0.5 if c.scale_logits else x
        dtype = product_dtype(c.dtype)
        return Unprojected(x, self.table, bias, dtype, self.vocab_size, c.final_logit_cap)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def rows(
    table: Float[Array, "V D"], tokens: Int[Array, "*B"], dtype: DTypeLike
) -> Float[Array, "*B D"]:
    """The rows of a table, which is rounded before they are gathered, so that a divided table
    travels in `dtype`; its gradient is added up in float32."""
    return jnp.take(table.astype(dtype), tokens, axis=0)


@rows.defjvp
def _rows_tangent(
    dtype: DTypeLike, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    changed = jnp.take(tangents[0], primals[1], axis=0)
    return rows(*primals, dtype), changed.astype(dtype)


class InputEmbedding(nn.Module):
    """What a stack reads: embedded tokens with positions, and BERT's token types and norm.

    Attributes:
      config: of the model.
      causal: of the position encoding.
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
        self.dropout = Dropout(c.embedding_dropout, c.dropout_bits)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        deterministic: bool,
        types: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Embedded tokens with their positions and, where the model has them, token types."""
        dtype = x.dtype
        x = self.position_encoding.embed(x, positions)
        if types is not None:
            x += jnp.take(self.token_types, types, axis=0, mode="clip")
        if self.config.embedding_norm:
            x = self.norm(x)
        return self.dropout(x.astype(dtype), deterministic)
