"""Patches: parts of a model switched off, scaled or replaced, while its code stays as it is.

    {"decoder.layer_1.cross_attention.heads[2]": 0,          # a head is switched off
     "encoder.layer_*.feed_forward": 0.5,                    # sublayers count half
     "encoder.layer_0[3]": streams[3],                       # a position's activations, replaced
     "encoder.layer_0.self_attention.weights[1, 4, :]": w,   # where query 4 of head 1 looks
     "decoder.layer_0": lambda x: x.at[..., 7].set(0)}       # anything

A key is a place (`nn.hooks`) or a pattern of places, and perhaps an index of their axes: heads,
neurons and features by number; tokens by their position in their sentence, in packed rows and in
searches too. A number scales what stands there; an array takes its place; a function of the whole
array [B, ...] changes it. A layer that is switched off hands on what it was given; sublayers, heads
and all others are zero.
"""

import contextlib
import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.errors import UserError
from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches

TOKENS = ("position", "query", "key")
"""Axes that count tokens."""

Places = Mapping[str, Mapping[str, int | None]]
"""Each place with its axes and their sizes; None: as many as there are tokens."""

_KEY = re.compile(r"(?P<pattern>[\w.*]+)(\[(?P<index>[^\[\]]*)\])?")
_INDEX = re.compile(r"(?P<one>\d+)|(?P<start>\d*):(?P<stop>\d*)")


@dataclasses.dataclass(frozen=True, eq=False)
class Patch:
    """One change of a model.

    Attributes:
      key: as it was given.
      pattern: of the places.
      index: for the first axes of a place, each a number or a slice.
      change: a number, an array or a function.
    """

    key: str
    pattern: str
    index: tuple[int | slice, ...]
    change: Any

    @classmethod
    def parse(cls, key: str, change: Any) -> "Patch":
        """UserError where the key is not written as a patch's key is."""
        found = _KEY.fullmatch(key)
        words = [word.strip() for word in (found and found["index"] or "").split(",") if found]
        parts = [_INDEX.fullmatch(word) for word in words if word]
        if found is None or None in parts or (found["index"] is not None and not parts):
            raise UserError(
                f"patch {key!r}: write PLACE or PLACE[INDEX, ...], where an index is a number from "
                "0, START:STOP or :, as in decoder.layer_1.cross_attention.heads[2]"
            )
        return cls(key, found["pattern"], tuple(_read(part) for part in parts if part), change)

    def matches(self, path: str) -> bool:
        """Whether a place is one of the patch's."""
        return matches(self.pattern, path)

    def changed(self, place: HookPoint, x: Array) -> Array:
        """What stands at a place of the patch in place of x [B, *axes]."""
        where = [
            _coordinates(place, axis, size)
            for axis, size in zip(place.axes, x.shape[1:], strict=True)
        ]
        inside = jnp.ones((), bool)
        for i, (index, at) in enumerate(zip(self.index, where, strict=False)):
            inside &= _along(_within(index, at), i, x.ndim)
        if callable(self.change):
            return jnp.where(inside, self.change(x), x)
        if np.ndim(self.change) == 0:
            return jnp.where(inside, place.off + self.change * (x - place.off), x)
        found, value = self._gathered(where, x)
        return jnp.where(inside & found, value, x)

    def _gathered(self, where: list[Array], x: Array) -> tuple[Array, Array]:
        """Of the array that replaces, the value for each element of x, and whether it has one."""
        index = (*self.index, *[slice(None)] * (len(where) - len(self.index)))
        array, found, places = jnp.asarray(self.change), jnp.ones((), bool), list[Array]()
        for i, one in enumerate(index):
            if isinstance(one, slice):
                at, size = where[i] - (one.start or 0), array.shape[len(places)]
                places.append(_along(at, i, x.ndim))
                found &= _along((at >= 0) & (at < size), i, x.ndim)
        return found, array.at[tuple(places)].get(mode="clip")


class PatchedModel:
    """A model whose applications all go through patches; in everything else it is the model.

    Each is equal to itself alone, so that programs compiled for others are not taken for its own.
    """

    def __init__(self, model: Any, patches: tuple[Patch, ...]) -> None:
        self.model, self.patches = model, patches

    def apply(self, *args: Any, **named: Any) -> Any:
        """As the model's."""
        with self._patching():
            return self.model.apply(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance`, by which tasks tell models apart."""
        return type(self.model)

    @contextlib.contextmanager
    def _patching(self) -> Iterator[None]:
        def change(place: HookPoint, x: Array) -> Array:
            for patch in self.patches:
                x = patch.changed(place, x) if patch.matches(place.path) else x
            return x

        def wanted(path: str) -> bool:
            return any(patch.matches(path) for patch in self.patches)

        with intercept_activations(change, wanted):
            yield


def patched_model(model: Any, changes: Mapping[str, Any], places: Places) -> PatchedModel:
    """The model with patches; with none it computes what the model does, to the bit.

    Args:
      model: perhaps patched already: these patches come after its own.
      changes: {key: change}, in the order in which they are applied.
      places: of the model, as `places_of` finds them.

    Raises:
      UserError: a place that the model has not (the nearest is named), an index beyond its axes, or
        an array that does not fit.
    """
    patches = tuple(Patch.parse(key, change) for key, change in changes.items())
    for patch in patches:
        _check(patch, places)
    if isinstance(model, PatchedModel):
        return PatchedModel(model.model, model.patches + patches)
    return PatchedModel(model, patches)


def places_of(init: Callable[[jax.Array], Any]) -> Places:
    """The places of a model where something can be changed.

    Args:
      init: makes its parameters; it is traced alone.
    """
    found: dict[str, dict[str, int | None]] = {}

    def note(place: HookPoint, x: Array) -> Array:
        if place.fixed:
            return x
        sizes = zip(place.axes, x.shape[1:], strict=True)
        found[place.path] = {axis: None if axis in TOKENS else size for axis, size in sizes}
        return x

    with intercept_activations(note):
        jax.eval_shape(init, jax.random.key(0))
    return found


def _check(patch: Patch, places: Places) -> None:
    matched = [path for path in places if patch.matches(path)]
    if not matched:
        near = difflib.get_close_matches(patch.pattern, places, n=1, cutoff=0.0)[0]
        raise UserError(
            f"patch {patch.key!r}: the model has no place {patch.pattern} that can be changed; the "
            f"nearest is {near}"
        )
    for path in matched:
        axes = places[path]
        if len(patch.index) > len(axes):
            raise UserError(f"patch {patch.key!r}: {path} has the axes {', '.join(axes)} alone")
        for index, (axis, size) in zip(patch.index, axes.items(), strict=False):
            last = index if isinstance(index, int) else (index.stop or 1) - 1
            if size is not None and last >= size:
                raise UserError(f"patch {patch.key!r}: {path} has {size} of the axis {axis}")
        _check_array(patch, path, [*axes.items()])


def _check_array(patch: Patch, path: str, axes: list[tuple[str, int | None]]) -> None:
    """Refuses an array of another shape than what it replaces; it may have tokens fewer or more."""
    if callable(patch.change) or np.ndim(patch.change) == 0:
        return
    index = (*patch.index, *[slice(None)] * (len(axes) - len(patch.index)))
    wanted = []
    for (axis, size), one in zip(axes, index, strict=True):
        if isinstance(one, slice):
            length = None if size is None else len(range(size)[one])
            wanted.append((axis, length))
    shape = np.shape(patch.change)
    fits = len(shape) == len(wanted) and all(
        length in (None, given) for given, (_, length) in zip(shape, wanted, strict=True)
    )
    if not fits:
        axes_told = ", ".join(axis if size is None else f"{axis} {size}" for axis, size in wanted)
        raise UserError(
            f"patch {patch.key!r}: an array of shape {shape} does not fit; {path} takes "
            f"[{axes_told}] there"
        )


def _read(part: re.Match[str]) -> int | slice:
    if part["one"]:
        return int(part["one"])
    start, stop = (int(part[name]) if part[name] else None for name in ("start", "stop"))
    return slice(start, stop)


def _coordinates(place: HookPoint, axis: str, size: int) -> Array:
    """What an index of an axis is compared with: [B, T], or [size] where no tokens are counted."""
    return place.positions[axis] if axis in TOKENS else jnp.arange(size)


def _within(index: int | slice, at: Array) -> Array:
    if isinstance(index, int):
        return at == index
    inside = at >= (index.start or 0)
    return inside if index.stop is None else inside & (at < index.stop)


def _along(values: Array, axis: int, ndim: int) -> Array:
    """Values [B, T] or [size] of an axis behind the batch, so that they broadcast with the rest."""
    shape = [1] * ndim
    shape[axis + 1] = values.shape[-1]
    if values.ndim == 2:
        shape[0] = values.shape[0]
    return values.reshape(shape)
