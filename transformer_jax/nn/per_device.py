# SPDX-License-Identifier: Apache-2.0
"""Mesh that the engine of a training step lends to layers, to work on each device's shards.

`sharded_call` runs functions that XLA cannot shard on each device's shard of their arguments;
`axis` gives a layer that communicates itself the axis of the mesh to do it along.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

ShardedCall = Callable[[Callable, tuple[Array, ...], tuple[Array, ...]], Array]
"""(function, heads, rows) -> result of `function(heads, rows)` on each device's shard.

`heads` are arrays [B, _, H, _], sharded by rows and heads; `rows` are arrays [B, ...], sharded by
rows. The result is one array [B, _, H, _], or [B, ...] without `heads`.
"""


ShardMap = Callable[[Callable, Any, Any], Callable]
"""(function, in_axes, out_axes) -> function of whole arrays, which runs `function` on each device's
shards: `jax.shard_map` over the engine's mesh, with the axes of arrays for specs.

Collectives of `function` use `LentAxis.name`. `in_axes` are the axes of each argument, separated by
spaces, such as "rows sequence heads size"; one text for all leaves of a tree. "rows", "sequence"
(tokens) and the names of parameters' axes (`nn.parameters`) are divided as the mesh divides them;
other names, and axes that are left out, are not.
"""


# Both contexts are part of the key of jit's cache.
_lent_axes = jax.make_user_context(None)
use_sharded_call = jax.make_user_context(None)
"""Context: inside, models call fused kernels and hardware random bits through the argument, a
`ShardedCall`. Training steps are traced in it. Outside, or with None, attention is plain, so that
hooks see its weights."""


@dataclasses.dataclass(frozen=True)
class LentAxis:
    """An axis of the engine's mesh, for the collectives of a layer.

    Attributes:
      name: as functions such as `jax.lax.psum` take it.

    Example:
      >>> experts = per_device.axis("experts")
      >>> if experts is not None:  # `apply` exchanges tokens: jax.lax.all_to_all(..., experts.name)
      ...     axes = ("rows sequence features", "experts features hidden")
      ...     y = experts.shard_map(apply, axes, "rows sequence features")(x, kernel)
    """

    name: str | tuple[str, ...]
    size: int
    shard_map: ShardMap


def use_axes(
    lend: Callable[[str], LentAxis | None] | None,
) -> contextlib.AbstractContextManager[None]:
    """Context: inside, `axis` gives the axes that `lend` has (`parallel.sharding.LentMesh`).

    `lend` is hashable; programs are traced again for another one.
    """
    return _lent_axes(lend)


def axis(role: str) -> LentAxis | None:
    """The axis of the mesh that divides an axis of arrays: "rows", "sequence", "experts", "heads".

    "device_rows" is the axis of devices that each run the whole program on their own rows, as under
    pmap; under a mesh a program has all rows.

    None if nothing divides it, or outside `use_axes`: then each device has all of it.
    """
    lend = _lent_axes.value
    return None if lend is None else lend(role)


def all_rows(*arrays: Array) -> tuple[tuple[Array, ...], Array | int]:
    """Rows of all devices that each run a loss on their own, as for negatives from the whole batch.

    Returns:
      arrays [B, ...] as [B of all devices, ...], with gradients, and the number of this device's
      first row among them. Under a mesh, and on one device, a loss has all rows already.
    """
    devices = axis("device_rows")
    if devices is None:
        return arrays, 0
    gathered = tuple(jax.lax.all_gather(x, devices.name, tiled=True) for x in arrays)
    return gathered, jax.lax.axis_index(devices.name) * len(arrays[0])


def sharded_call(function: Callable, heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Array:
    """Calls `function(heads, rows)` on each device's shard (`ShardedCall`), or on the whole arrays
    if no sharded call is in use."""
    call = use_sharded_call.value
    return function(heads, rows) if call is None else call(function, heads, rows)
