# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of linear maps (LoRA, Hu et al. 2021)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.parameters import map_named


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LowRankAdapter:
    """Adapter s A B that is added to the matrix of a linear map, of I inputs and O outputs.

    Attributes:
      down, up: A and B, which is initially 0, so that nothing is added.
    """

    down: Float[Array, "I r"]
    up: Float[Array, "r O"]
    scale: float = dataclasses.field(metadata={"static": True})
    dropout_rate: float = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdaptedMatrix:
    """Matrix W [*inputs, *outputs] of a linear map, with its adapter (`linear.adapted_product`)."""

    kernel: Float[Array, "..."]
    adapter: LowRankAdapter

    def merged(self) -> Float[Array, "..."]:
        """Computes W + s A B."""
        added = jnp.matmul(self.adapter.down, self.adapter.up, precision="highest")
        return self.kernel + (self.adapter.scale * added).reshape(self.kernel.shape)


Adapters = Mapping[str, LowRankAdapter]
"""Adapters by the path of their kernel, such as "decoder/layer_0/self_attention/query/kernel"."""


def with_adapters(params: Any, adapters: Adapters) -> Any:
    """Replaces each kernel that has an adapter by an `AdaptedMatrix`, which modules accept."""

    def adapt(name: str, leaf: Any) -> Any:
        return AdaptedMatrix(leaf, adapters[name]) if name in adapters else leaf

    return map_named(adapt, params)


def merge_adapters(params: Any) -> Any:
    """Adds each adapter to its kernel, so that plain arrays are left."""
    return jax.tree.map(
        lambda leaf: leaf.merged() if isinstance(leaf, AdaptedMatrix) else leaf,
        params,
        is_leaf=lambda leaf: isinstance(leaf, AdaptedMatrix),
    )
