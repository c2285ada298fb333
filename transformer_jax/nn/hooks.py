# SPDX-License-Identifier: Apache-2.0
"""Hook points: named values inside a model, which callers can read or change.

The path of a module, such as "decoder.layer_1.cross_attention", names its output; a suffix names a
value inside it, as `Sublayer.expose` calls it. docs/looking_inside.md has the table. Every value
has a leading batch axis.

In a pattern, * matches anything between two dots and ** matches anything.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer_jax.nn.masks import positions_in_segments
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.recurrent.decoder import RecurrentDecoder, SourceAttention
from transformer_jax.nn.recurrent.encoder import RecurrentEncoder, RecurrentLayer
from transformer_jax.nn.sublayers import AttentionLayer, FeedForwardLayer, Sublayer, current_place
from transformer_jax.nn.transformer import Block, Decoder, Encoder, Residual, residual_class

STREAM: tuple[str, ...] = ("position", "feature")
WEIGHTS = ("head", "query", "key")


@dataclasses.dataclass(frozen=True)
class HookPoint:
    """A named value inside a model.

    Attributes:
      positions: for each axis that counts tokens, their positions [B, T] in their sentences.
      off_value: value that remains if it is switched off (`models.patches`).
      read_only: the model has used the value already, so that a change has no effect.
    """

    path: str
    axes: tuple[str, ...]
    positions: Mapping[str, Int[Array, "B T"]]
    off_value: Any = 0.0
    read_only: bool = False


Change = Callable[[HookPoint, Array], Array]
"""(hook point, value [B, *axes]) -> new value of the same shape."""

_ENTRIES = (Encoder, Decoder, PositionEncoding, RecurrentEncoder, RecurrentDecoder)
"""Modules whose hook points are not inside an enclosing stack."""

_WITH_INPUT = (
    Encoder,
    Decoder,
    RecurrentEncoder,
    AttentionLayer,
    FeedForwardLayer,
    PositionEncoding,
)
"""Modules with a hook point "PATH.input", too."""


def matches_pattern(pattern: str, path: str) -> bool:
    """Returns True if the whole path matches: `*` is any text without a dot, `**` any text."""
    parts = re.split(r"(\*\*?)", pattern)
    wildcards = {"*": "[^.]*", "**": ".*"}
    expression = "".join(wildcards.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, path) is not None


def intercept_results(
    change: Callable[[Array], Array], cls: type[nn.Module], name: str
) -> contextlib.AbstractContextManager[None]:
    """Context: inside, what the method `name` of modules of a class returns passes through
    `change`, for example to constrain its sharding."""

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        result = method(*args, **kwargs)
        is_wanted = isinstance(context.module, cls) and context.method_name == name
        return change(result) if is_wanted else result

    return nn.intercept_methods(intercept)


def intercept_activations(
    change: Change, wanted: Callable[[str], bool] = lambda path: True
) -> contextlib.AbstractContextManager[None]:
    """Context: inside, models pass the value at each wanted hook point through `change`.

    Wanted weights are computed without fused kernels, on whole rows. Stacked layers
    (`nn.layer_scan`) have no hook points.
    """
    return nn.intercept_methods(_Interceptor(change, wanted))


def _path(module: nn.Module) -> str:
    """Path of a module; in a layer that uses the parameters of another, with its own number."""
    place = current_place()
    parts = module.path
    if place is not None:
        parts = [f"layer_{place.index}" if part.startswith("layer_") else part for part in parts]
    return ".".join(parts)


def _stream_axes(module: nn.Module, x: Array) -> tuple[str, ...]:
    """Names of the axes of a residual stream [N, T, ..., D] that a module returns."""
    axes = STREAM
    if isinstance(module, Block | Residual):
        residual = module if isinstance(module, Residual) else residual_class(module.config)
        axes = residual.axes
    if len(axes) == x.ndim - 1:
        return axes
    return ("position", *(f"axis_{i}" for i in range(2, x.ndim - 1)), "feature")


class _Interceptor:
    """Interceptor of all methods of all modules, for `nn.intercept_methods`."""

    def __init__(self, change: Change, wanted: Callable[[str], bool]) -> None:
        self._change = change
        self._wanted = wanted
        self._stacks: dict[str, Array] = {}  # token positions [N, T] of each stack
        self._open: set[tuple[str, str]] = set()  # calls that `super()` may make again

    def __call__(self, method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if context.module.scope is None:  # the encoding of a layer
            return method(*args, **kwargs)
        path = _path(context.module)
        call = (path, context.method_name)
        is_entry = isinstance(context.module, _ENTRIES)
        inside = is_entry or any(path.startswith(f"{stack}.") for stack in self._stacks)
        if not inside or call in self._open:
            return method(*args, **kwargs)
        self._open.add(call)
        try:
            return self._intercepted(method, args, kwargs, context.module, *call)
        finally:
            self._open.discard(call)

    def _intercepted(
        self, method: Callable, args: tuple, kwargs: dict, module: Any, path: str, name: str
    ) -> Any:
        match module, name:
            case RecurrentDecoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[3])
                return method(*args, **kwargs)
            case SourceAttention(), "weigh":
                return self._hook(f"{path}.weights", WEIGHTS, args[0], {}, read_only=True)
            case Sublayer(), "expose":
                value = method(*args, **kwargs)  # other interceptors may have changed it
                return self._expose(path, args[0], value, args[2], **kwargs)
            case Sublayer(), "exposes":
                wanted = any(self._wanted(f"{path}.{value}") for value in args)
                return method(*args, **kwargs) or wanted
            case Residual(), "enter" if type(module).enter is Residual.enter:
                return method(*args, **kwargs)
            case RecurrentEncoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[1])
            case Encoder() | Decoder(), "__call__":
                self._stacks[path] = args[1].positions
            case RecurrentLayer() | Block(), "__call__":
                pass
            case AttentionLayer() | FeedForwardLayer(), "self_attend" | "cross_attend" | "__call__":
                pass
            case (Residual(), "enter" | "write") | (PositionEncoding(), "embed"):
                pass
            case _:
                return method(*args, **kwargs)
        positions = {"position": args[1] if name == "embed" else self._stack_of(path)}
        if isinstance(module, _WITH_INPUT):
            args = self._hook(f"{path}.input", STREAM, args[0], positions), *args[1:]
        result = method(*args, **kwargs)
        x, *others = result if isinstance(result, tuple) else (result,)
        off_value = args[0] if isinstance(module, Block) else 0.0
        x = self._hook(path, _stream_axes(module, x), x, positions, off_value)
        return (x, *others) if isinstance(result, tuple) else x

    def _expose(
        self, path: str, name: str, x: Array, axes: tuple[str, ...], **positions: Array | None
    ) -> Array:
        """Hook point of a value that a sublayer exposes."""
        if not self._wanted(f"{path}.{name}"):
            return x
        tokens = dict[str, Array]()
        for size, axis in zip(x.shape[1:], axes, strict=True):
            axis_positions = positions.get(axis)
            if axis_positions is not None:
                tokens[axis] = axis_positions
            elif axis == "key" or name in ("keys", "values"):
                # A search does not call the encoder, and its rows are one sentence each. In a
                # merged block the keys of the source follow those of the target.
                indices = jnp.broadcast_to(jnp.arange(size), (len(x), size))
                source = self._stacks.get("encoder", indices)
                tokens[axis] = source if source.shape == indices.shape else indices
            elif axis in ("position", "query"):
                tokens[axis] = self._stack_of(path).reshape(len(x), size)
        order = sorted(range(len(axes)), key=lambda i: axes[i] != "head")  # heads first
        moved = x.transpose(0, *(1 + i for i in order))
        moved = self._hook(f"{path}.{name}", tuple(axes[i] for i in order), moved, tokens)
        return moved.transpose(0, *(1 + order.index(i) for i in range(len(axes))))

    def _stack_of(self, path: str) -> Array:
        """Token positions of the stack at a path, or around it."""
        stacks = self._stacks.items()
        return next(tokens for stack, tokens in stacks if f"{path}.".startswith(f"{stack}."))

    def _hook(
        self,
        path: str,
        axes: tuple[str, ...],
        x: Array,
        positions: Mapping[str, Array],
        off_value: Any = 0.0,
        read_only: bool = False,
    ) -> Array:
        if not self._wanted(path):
            return x
        point = HookPoint(path, axes, positions, off_value, read_only)
        return self._change(point, x).astype(x.dtype)
