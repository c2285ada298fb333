# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of linear maps (LoRA, Hu et al. 2021)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.dropout import drop_elements, threefry_bits
from transformer_jax.nn.ops import einsum
from transformer_jax.nn.parameters import map_named
from transformer_jax.nn.traced_numbers import dropout_rate, traced_number


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
    """Matrix W [*inputs, *outputs] of a linear map, with its adapter."""

    kernel: Float[Array, "..."]
    adapter: LowRankAdapter

    def product(
        self, x: Float[Array, "N I"], dtype: Any, key: jax.Array | None, exact: bool = False
    ) -> Float[Array, "N O"]:
        """x W + s x A B, with dropout on the adapter's x if there is a key; `exact` as of
        `ops.einsum`."""
        base = einsum("nd,df->nf", x, self.kernel.reshape(x.shape[1], -1), dtype, exact)
        adapter = self.adapter
        if key is not None and adapter.dropout_rate:
            rate = traced_number("lora.dropout_rate", dropout_rate(adapter.dropout_rate))
            x = drop_elements(x, jax.random.key_data(key), rate, threefry_bits)
        inner = einsum("nd,dr->nr", x, adapter.down, dtype)
        return base + adapter.scale * einsum("nr,rf->nf", inner, adapter.up, dtype, exact)

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


def init_adapter(
    key: jax.Array, kernel: Any, input_axes: int, rank: int, scale: float, dropout_rate: float
) -> LowRankAdapter:
    """Initial adapter of a kernel: A is uniform in +-1 / sqrt(I), of variance 1 / (3 I), as in
    peft, so that learning rates carry over; B is 0."""
    inputs = math.prod(kernel.shape[:input_axes])
    outputs = math.prod(kernel.shape[input_axes:])
    limit = 1 / math.sqrt(inputs)
    down = jax.random.uniform(key, (inputs, rank), minval=-limit, maxval=limit)
    return LowRankAdapter(down, jnp.zeros((rank, outputs)), scale, dropout_rate)
