# SPDX-License-Identifier: Apache-2.0
"""Patches: switch off, scale or replace values inside a model without changing its code.

    {"decoder.layer_1.cross_attention.heads[2]": 0,          # a head is switched off
     "encoder.layer_*.feed_forward": 0.5,                    # sublayers are halved
     "encoder.layer_0[3]": streams[3],                       # activations of a position, replaced
     "encoder.layer_0.self_attention.weights[1, 4, :]": w,   # weights of query 4 in head 1
     "decoder.layer_0": lambda x: x.at[..., 7].set(0)}       # any function

A key is a hook point (`nn.hooks`) or a pattern of hook points, optionally with an index into their
axes; tokens count by their position in their sentence. A number scales the value, an array replaces
it, a function of the whole array [B, ...] computes it. A layer that is switched off returns its
input; all other values become zero.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.errors import UserError
from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches_pattern
from transformer_jax.suggestions import suggest

TOKENS = ("position", "query", "key")
"""Axes that count tokens."""

HookPointAxes = Mapping[str, Mapping[str, int | None]]
"""Axes of each hook point with their sizes; None: the number of tokens."""

_KEY = re.compile(r"(?P<pattern>[\w.*]+)(\[(?P<index>[^\[\]]*)\])?")
_INDEX = re.compile(r"(?P<number>\d+)|(?P<start>\d*):(?P<stop>\d*)")


@dataclasses.dataclass(frozen=True, eq=False)
class Patch:
    """One change of a model.

    Attributes:
      index: a number or a slice for each of the first axes.
    """

    key: str
    pattern: str
    index: tuple[int | slice, ...]
    change: Any

    @classmethod
    def parse(cls, key: str, change: Any) -> "Patch":
        """Parses a key; UserError if it is malformed."""
        match = _KEY.fullmatch(key)
        words = (match["index"] or "").split(",") if match else []
        parts = [_INDEX.fullmatch(word.strip()) for word in words if word.strip()]
        if match is None or None in parts or (match["index"] is not None and not parts):
            raise UserError(
                f"patch {key!r}: write HOOK_POINT or HOOK_POINT[INDEX, ...], where an index is a "
                "number from 0, START:STOP or :, as in decoder.layer_1.cross_attention.heads[2]"
            )
        index = tuple(_parse_index(part) for part in parts if part)
        return cls(key, match["pattern"], index, change)

    def matches(self, path: str) -> bool:
        return matches_pattern(self.pattern, path)

    def apply(self, point: HookPoint, x: Array) -> Array:
        """Changes the value x [B, *axes] of a hook point."""
        coordinates = [  # positions [B, T] of tokens, or 0 to size - 1
            point.positions[axis] if axis in TOKENS else jnp.arange(size)
            for axis, size in zip(point.axes, x.shape[1:], strict=True)
        ]
        selected = jnp.ones((), bool)
        for i, (index, coordinate) in enumerate(zip(self.index, coordinates, strict=False)):
            selected &= _along_axis(_is_selected(index, coordinate), i, x.ndim)
        if callable(self.change):
            return jnp.where(selected, self.change(x), x)
        if np.ndim(self.change) == 0:
            return jnp.where(selected, point.off_value + self.change * (x - point.off_value), x)
        exists, value = self._replacement(coordinates, x)
        return jnp.where(selected & exists, value, x)

    def _replacement(self, coordinates: list[Array], x: Array) -> tuple[Array, Array]:
        """Looks up whether the replacing array has an element for each element of x, and this
        element."""
        index = (*self.index, *[slice(None)] * (len(coordinates) - len(self.index)))
        array = jnp.asarray(self.change)
        exists = jnp.ones((), bool)
        rows: list[Array] = []
        for i, axis_index in enumerate(index):
            if isinstance(axis_index, slice):  # the array has no axis for a number
                row = coordinates[i] - (axis_index.start or 0)
                size = array.shape[len(rows)]
                rows.append(_along_axis(row, i, x.ndim))
                exists &= _along_axis((row >= 0) & (row < size), i, x.ndim)
        return exists, array.at[tuple(rows)].get(mode="clip")


class WrappedModel:
    """A model with another `apply`; all other attributes are the model's.

    Instances compare by identity, so that each gets its own compiled programs.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The model's class, for `isinstance` checks in tasks."""
        return type(self.model)


class PatchedModel(WrappedModel):
    """A model with patches on every call of `apply`."""

    def __init__(self, model: Any, patches: tuple[Patch, ...]) -> None:
        super().__init__(model)
        self.patches = patches

    def apply(self, *args: Any, **named: Any) -> Any:
        def change(point: HookPoint, x: Array) -> Array:
            for patch in self.patches:
                if patch.matches(point.path) and not point.read_only:
                    x = patch.apply(point, x)
            return x

        def is_patched(path: str) -> bool:
            return any(patch.matches(path) for patch in self.patches)

        with intercept_activations(change, is_patched):
            return self.model.apply(*args, **named)


def patched_model(model: Any, changes: Mapping[str, Any], points: HookPointAxes) -> PatchedModel:
    """Patches a model, after the patches that it has. Without changes its results stay the same.

    Args:
      changes: {key: change}, in order of application.

    Raises:
      UserError: an unknown hook point (the message names the nearest), an index beyond the axes, or
        an array that does not fit.
    """
    patches = tuple(Patch.parse(key, change) for key, change in changes.items())
    for patch in patches:
        _check(patch, points)
    if isinstance(model, PatchedModel):
        return PatchedModel(model.model, model.patches + patches)
    return PatchedModel(model, patches)


def find_hook_points(init: Callable[[jax.Array], Any]) -> HookPointAxes:
    """Finds the hook points of a model that can be changed. `init`, a function of a key that
    initializes the model, is only traced."""
    points: dict[str, dict[str, int | None]] = {}

    def collect(point: HookPoint, x: Array) -> Array:
        if point.read_only:
            return x
        sizes = zip(point.axes, x.shape[1:], strict=True)
        points[point.path] = {axis: None if axis in TOKENS else size for axis, size in sizes}
        return x

    with intercept_activations(collect):
        jax.eval_shape(init, jax.random.key(0))
    return points


def _check(patch: Patch, points: HookPointAxes) -> None:
    matched = [path for path in points if patch.matches(path)]
    if not matched:
        examples = ", ".join(itertools.islice(points, 8))
        hint = suggest(patch.pattern, points) or f"; it has {examples}, ..."
        raise UserError(
            f"patch {patch.key!r}: the model has no hook point {patch.pattern} that can be "
            f"changed{hint}"
        )
    for path in matched:
        axes = points[path]
        if len(patch.index) > len(axes):
            raise UserError(f"patch {patch.key!r}: {path} has only the axes {', '.join(axes)}")
        for index, (axis, size) in zip(patch.index, axes.items(), strict=False):
            last = index if isinstance(index, int) else max(index.start or 0, (index.stop or 1) - 1)
            if size is not None and last >= size:
                raise UserError(
                    f"patch {patch.key!r}: index {last} is too large; axis {axis} of {path} has "
                    f"size {size}"
                )
        _check_array(patch, path, [*axes.items()])


def _check_array(patch: Patch, path: str, axes: list[tuple[str, int | None]]) -> None:
    """Raises UserError if an array has another shape than the value that it replaces. The number of
    tokens may differ."""
    if callable(patch.change) or np.ndim(patch.change) == 0:
        return
    index = (*patch.index, *[slice(None)] * (len(axes) - len(patch.index)))
    wanted = []
    for (axis, size), axis_index in zip(axes, index, strict=True):
        if isinstance(axis_index, slice):
            length = None if size is None else len(range(size)[axis_index])
            wanted.append((axis, length))
    shape = np.shape(patch.change)
    fits = len(shape) == len(wanted) and all(
        length in (None, size) for size, (_, length) in zip(shape, wanted, strict=True)
    )
    if not fits:
        described = ", ".join(axis if size is None else f"{axis} {size}" for axis, size in wanted)
        raise UserError(
            f"patch {patch.key!r}: an array of shape {shape} does not fit; {path} takes "
            f"[{described}] there"
        )


def _parse_index(part: re.Match[str]) -> int | slice:
    if part["number"]:
        return int(part["number"])
    start, stop = (int(part[name]) if part[name] else None for name in ("start", "stop"))
    return slice(start, stop)


def _is_selected(index: int | slice, coordinate: Array) -> Array:
    if isinstance(index, int):
        return coordinate == index
    selected = coordinate >= (index.start or 0)
    return selected if index.stop is None else selected & (coordinate < index.stop)


def _along_axis(values: Array, axis: int, ndim: int) -> Array:
    """Reshapes values [B, T] or [size] to broadcast along an axis, counted after the batch axis."""
    shape = [1] * ndim
    shape[axis + 1] = values.shape[-1]
    if values.ndim == 2:
        shape[0] = values.shape[0]
    return values.reshape(shape)
