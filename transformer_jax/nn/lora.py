"""Low-rank adapters of linear maps (LoRA, Hu et al. 2021)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.dropout import dropped, random_bits
from transformer_jax.nn.ops import einsum


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRank:
    """What is added to the matrix of a linear map: s A B, of I inputs and O outputs.

    Attributes:
      down: A, [I, r].
      up: B, [r, O]; of a fresh one 0, so that nothing is added.
      scale: s.
      dropout_rate: of what A reads.
    """

    down: Float[Array, "I r"]
    up: Float[Array, "r O"]
    scale: float = dataclasses.field(metadata={"static": True})
    dropout_rate: float = dataclasses.field(metadata={"static": True})

    def product(
        self, x: Float[Array, "N I"], dtype: Any, key: jax.Array | None
    ) -> Float[Array, "N O"]:
        """s x A B; with a key, elements of x are dropped first."""
        if key is not None and self.dropout_rate:
            x = dropped(x, jax.random.key_data(key), self.dropout_rate, random_bits)
        inner = einsum("nd,dr->nr", x, self.down, dtype)
        return self.scale * einsum("nr,rf->nf", inner, self.up, dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptedMatrix:
    """The matrix of a linear map with an adapter beside it.

    Attributes:
      kernel: W, [*inputs, *outputs].
      adapter: what is added.
    """

    kernel: Float[Array, "..."]
    adapter: LowRank

    def product(
        self, x: Float[Array, "N I"], dtype: Any, key: jax.Array | None
    ) -> Float[Array, "N O"]:
        """x W + s x A B."""
        own = einsum("nd,df->nf", x, self.kernel.reshape(x.shape[1], -1), dtype)
        return own + self.adapter.product(x, dtype, key)

    def merged(self) -> Float[Array, "..."]:
        """W + s A B."""
        added = jnp.matmul(self.adapter.down, self.adapter.up, precision="highest")
        return self.kernel + (self.adapter.scale * added).reshape(self.kernel.shape)


Adapters = Mapping[str, LowRank]
"""By the path of the kernel that each is beside, "decoder/layer_0/self_attention/query/kernel"."""


def with_adapters(params: Any, adapters: Adapters) -> Any:
    """The parameters with each adapter beside its kernel; modules accept them in their place."""

    def beside(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return AdaptedMatrix(leaf, adapters[name]) if name in adapters else leaf

    return jax.tree_util.tree_map_with_path(beside, params)


def merge_adapters(params: Any) -> Any:
    """The parameters with each adapter added to its kernel: none is left."""
    return jax.tree.map(
        lambda leaf: leaf.merged() if isinstance(leaf, AdaptedMatrix) else leaf,
        params,
        is_leaf=lambda leaf: isinstance(leaf, AdaptedMatrix),
    )


def fresh_adapter(
    key: jax.Array, kernel: Any, input_axes: int, rank: int, scale: float, dropout_rate: float
) -> LowRank:
    """One for a kernel of this shape: A is normal with variance 1 / I, B is 0."""
    inputs = math.prod(kernel.shape[:input_axes])
    outputs = math.prod(kernel.shape[input_axes:])
    down = jax.random.normal(key, (inputs, rank)) / math.sqrt(inputs)
    return LowRank(down, jnp.zeros((rank, outputs)), scale, dropout_rate)
