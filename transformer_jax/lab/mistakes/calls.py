# SPDX-License-Identifier: Apache-2.0
"""Calls of a user's function: roles of its parameters by name, its library, a limit of time."""

import inspect
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.errors import UserError, reason_of

SECONDS = 30.0
"""Limit of one call: compiling a small program takes up to a few seconds."""

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
"""Role -> regular expression of the names of parameters that have it."""

_AXES = {"b": "batch", "h": "heads", "t": "time", "s": "time", "d": "depth", "f": "features"}


class RejectedError(UserError):
    """The function refuses the inputs of a layout; an error of the user's where no other is."""

    reason = ""


class Trial(NamedTuple):
    """A layout of arguments by role, its reference, and the output once the function was called.

    Attributes:
      options: those of the reference that make it the right one.
    """

    name: str
    arguments: Mapping[str, Any]
    reference: Callable[..., np.ndarray]
    options: Mapping[str, Any] = {}
    output: np.ndarray = np.zeros(0)


def arranged(array: np.ndarray, axes: str, order: str) -> np.ndarray:
    """An array of axes such as "bhtd" in another order; of an axis that it lacks, the last."""
    array = array[tuple(slice(None) if axis in order else -1 for axis in axes)]
    present = [axis for axis in axes if axis in order]
    array = array.transpose([present.index(axis) for axis in order if axis != "1"])
    return np.expand_dims(array, tuple(i for i, axis in enumerate(order) if axis == "1"))


def named_axes(order: str) -> str:
    """An order of axes in words."""
    return f"[{', '.join(_AXES.get(axis, axis) for axis in order)}]"


def laid_out(
    axes: str,
    orders: Iterable[str],
    arguments: Mapping[str, Any],
    reference: Callable[..., np.ndarray],
    words: str = "",
) -> list[Trial]:
    """Layouts of the arguments with these axes, and of the reference's result, in some orders."""
    layouts = []
    for order in orders:
        moved = {
            role: arranged(value, axes, order) if np.ndim(value) == len(axes) else value
            for role, value in arguments.items()
        }

        def moved_reference(order: str = order, **options: Any) -> np.ndarray:
            return arranged(reference(**options), axes, order)

        layouts.append(Trial(named_axes(order) + words, moved, moved_reference))
    return layouts


class Subject:
    """A user's function, called with values by role.

    Args:
      check: the check that asks, such as "check_attention".
      roles: those that the check can serve, in the usual order; parameters with other names take
        the roles that are left, in this order.
      seconds: limit of a call; the thread of a call that exceeds it is left behind.
    """

    def __init__(self, check: str, fn: Any, roles: Sequence[str], seconds: float = SECONDS):
        if not callable(fn):
            raise UserError(f"a check takes a function, and {type(fn).__name__} is none")
        self.check = check
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.doc = fn.__doc__ or ""
        self._fn = fn
        self._seconds = seconds
        self._libraries = _libraries(fn)
        self.rejection: RejectedError | None = None
        self._signature = _signature(fn, roles)
        parameters = self._signature.parameters.values()
        single = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        left = list(roles)
        self.roles: dict[str, str] = {}
        for parameter in single:
            told = [r for r in left if re.fullmatch(_NAMES[r], parameter.name.lower())]
            if told:
                self.roles[parameter.name] = told[0]
                left.remove(told[0])
        self.by_name = set(self.roles.values())
        self._required = [p.name for p in single if p.default is p.empty]
        untold = [name for name in self._required if name not in self.roles]
        if len(untold) > len(left):
            raise UserError(
                f"{self.name}: what is the parameter `{untold[len(left)]}`? Known are "
                f"{', '.join(roles)}; wrap the function in one of these arguments"
            )
        self.roles |= zip(untold, left, strict=False)

    def has(self, role: str) -> bool:
        """Returns True for a role of one of its parameters."""
        return role in self.roles.values()

    def __call__(self, **values: Any) -> Any:
        """The result as NumPy arrays, in the first library in which the function takes values."""
        for name in self._required:
            if self.roles[name] not in values:
                raise self.rejected(f"`{name}` has no value here")
        errors = []
        for library in self._libraries:
            try:
                result = self._call(values, library)
            except RejectedError as error:
                errors.append(error)
                continue
            self._libraries = [library]
            return result
        raise errors[0]

    def array(self, **values: Any) -> np.ndarray:
        """The first array of the result."""
        result = self(**values)
        first = result[0] if isinstance(result, (tuple, list)) else result
        try:
            return np.asarray(first, np.float64)
        except (TypeError, ValueError):
            raise self.rejected(f"it returns {type(first).__name__}, no array") from None

    def trials(
        self, layouts: Iterable[Trial], readings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[Trial]:
        """The layouts that it takes with outputs, and with options that give their shapes."""
        trials = []
        for layout in layouts:
            try:
                output = self.array(**layout.arguments)
            except RejectedError:
                continue
            for words, options in (readings or {"": {}}).items():
                shape = layout.reference(**options).shape
                if output.shape == shape:
                    trials.append(Trial(layout.name + words, *layout[1:3], options, output))
                else:
                    self.rejected(f"it returns the shape {list(output.shape)}, not {list(shape)}")
        return trials

    def again(self, trial: Trial) -> np.ndarray:
        """The output of a second call, or the first where one call does not make it."""
        try:
            return self.array(**trial.arguments)
        except RejectedError:
            return trial.output

    def rejected(self, reason: str) -> RejectedError:
        """The error of a layout; the first is kept for a function that takes no layout."""
        usual = "wrap it in a function of the usual arguments (docs/mistakes.md)"
        error = RejectedError(f"{self.name}: {reason}; {usual}")
        error.reason = reason
        self.rejection = self.rejection or error
        return error

    def _call(self, values: Mapping[str, Any], library: str) -> Any:
        arguments = {
            name: jax.tree.map(lambda leaf: _in_library(leaf, library), values[role])
            for name, role in self.roles.items()
            if role in values
        }
        bound = inspect.BoundArguments(self._signature, arguments)
        results: list[Any] = []
        errors: list[BaseException] = []

        def target() -> None:
            try:
                with np.errstate(all="ignore"):
                    results.append(self._fn(*bound.args, **bound.kwargs))
            except BaseException as error:  # also SystemExit: it is the user's function
                errors.append(error)

        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        thread.join(self._seconds)
        if thread.is_alive():
            raise UserError(f"{self.name} did not return within {self._seconds:g} s (`seconds=`)")
        for error in errors:
            raise self.rejected(f"it raises {type(error).__name__}: {reason_of(error)}") from error
        for name, argument in arguments.items():
            before = values[self.roles[name]]
            is_array = isinstance(before, np.ndarray)
            if is_array and not np.allclose(to_numpy(argument), before, 1e-6, equal_nan=True):
                raise UserError(
                    f"{self.name} changes its argument `{name}` in place: copy it first"
                )
        return jax.tree.map(to_numpy, results[0])


def _signature(fn: Any, roles: Sequence[str]) -> inspect.Signature:
    """Signature of a function or a module's `forward`; of one in C, the first roles."""
    try:
        return inspect.signature(getattr(fn, "forward", fn))
    except (TypeError, ValueError):
        kind = inspect.Parameter.POSITIONAL_ONLY
        defaults = zip(roles, [inspect.Parameter.empty] * 3 + [None], strict=False)
        return inspect.Signature([inspect.Parameter(r, kind, default=d) for r, d in defaults])


def _libraries(fn: Any) -> list[str]:
    """Libraries to try; PyTorch first where the function names it."""
    if "torch" not in sys.modules:
        return ["numpy", "jax"]
    names = getattr(getattr(fn, "__code__", None), "co_names", ())
    is_first = "torch" in names or hasattr(fn, "forward") or "torch" in str(fn.__module__)
    return ["torch", "numpy", "jax"] if is_first else ["numpy", "jax", "torch"]


def _in_library(value: Any, library: str) -> Any:
    """A copy of an array, or a generator, in a library; other values stay."""
    if isinstance(value, np.random.Generator) and library == "jax":
        return jax.random.key(0)
    if not isinstance(value, np.ndarray):
        return value
    if library == "torch":
        tensor = sys.modules["torch"].from_numpy(value.copy())
        return tensor.float() if tensor.is_floating_point() else tensor
    return jax.numpy.asarray(value) if library == "jax" else value.copy()


def to_numpy(value: Any) -> Any:
    """An array of any library as NumPy's; other values stay."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    return np.asarray(value) if isinstance(value, jax.Array) else value
