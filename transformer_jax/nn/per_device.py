"""What runs on each device's part of its inputs, because XLA cannot divide it itself."""

import contextlib
from collections.abc import Callable

import jax
from jaxtyping import Array

PerDevice = Callable[[Callable, tuple[Array, ...], tuple[Array, ...]], Array]
"""(function, arrays [B, _, H, _], arrays [B, ...]) -> what the function makes of each device's part
of them, as one array [B, _, H, _]; without arrays of the first kind, one [B, ...]."""


def divided_by(per_device: PerDevice | None) -> contextlib.AbstractContextManager[None]:
    """A context: models applied inside it may use what XLA cannot divide, as fused attention and
    random bits of the hardware.

    Training steps are traced in it. Elsewhere, and with None, attention is plain, so that whoever
    intercepts the weights is heard.
    """
    return _per_device(per_device)


def sharded_call(function: Callable, heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Array:
    """What the function makes of each device's part of the arrays (`PerDevice`); of the whole
    arrays where nobody said how they are divided."""
    per_device = _per_device.value
    return function(heads, rows) if per_device is None else per_device(function, heads, rows)


def is_divided() -> bool:
    """Whether it is known how the program that is traced now is divided."""
    return _per_device.value is not None


_per_device = jax.make_user_context(None)  # part of the key of what jit keeps
