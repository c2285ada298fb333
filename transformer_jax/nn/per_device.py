# SPDX-License-Identifier: Apache-2.0
"""Functions that XLA cannot shard, called on each device's shard of their arguments.

Fused attention kernels and hardware random bits are such functions. The engine of a training step
knows how its arrays are sharded, so it provides the call (`use_sharded_call`).
"""

import contextlib
from collections.abc import Callable

import jax
from jaxtyping import Array

ShardedCall = Callable[[Callable, tuple[Array, ...], tuple[Array, ...]], Array]
"""(function, heads, rows) -> result of `function(heads, rows)` on each device's shard.

`heads` are arrays [B, _, H, _], sharded by rows and heads; `rows` are arrays [B, ...], sharded by
rows. The result is one array [B, _, H, _], or [B, ...] without `heads`.
"""


def sharded_call(function: Callable, heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Array:
    """Calls `function(heads, rows)` on each device's shard, or on the whole arrays if no sharded
    call is in use. Arguments are those of `ShardedCall`."""
    call = _sharded_call.value
    return function(heads, rows) if call is None else call(function, heads, rows)


def use_sharded_call(call: ShardedCall | None) -> contextlib.AbstractContextManager[None]:
    """Context: inside, models call fused kernels and hardware random bits through `call`.

    Training steps are traced in it. Outside, or with None, attention is plain, so that hooks see
    its weights.
    """
    return _sharded_call(call)


def has_sharded_call() -> bool:
    """Returns True inside `use_sharded_call` with a call."""
    return _sharded_call.value is not None


_sharded_call = jax.make_user_context(None)  # part of the key of jit's cache
