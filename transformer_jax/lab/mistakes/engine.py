# SPDX-License-Identifier: Apache-2.0
"""Calls a user's function in many layouts and finds which reference, right or wrong, it equals.

A new mistake is a row of table.toml and, if its option is new, a line of the reference.
"""

import contextlib
import inspect
import itertools
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.errors import UserError, escape_controls, reason_of

SECONDS = 30.0
"""Limit of one call: compiling a small program takes up to a few seconds."""
TOLERANCE = 2e-4
"""Largest difference of equal outputs, relative to the largest element: float32, other order.
In half precision it is two of its roundings, of one number half a one."""
TOLERANCE_OF_ONE = 1e-5
"""That of an output of one number, which many wrong references come close to."""

_AXES = {"b": "batch", "h": "heads", "t": "time", "s": "time", "d": "depth", "f": "features"}
_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
"""Role -> regular expression of the names of parameters that have it."""
_PARTS = tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))


class Mistake(NamedTuple):
    """A row of table.toml.

    `about` is the part whose reference `wrong` makes wrong, by several variants of options; without
    any, a property of the outputs shows the mistake. `source` has the right form, or warns.
    """

    about: str
    name: str
    title: str
    looks: str
    change: str
    source: str
    wrong: Sequence[Mapping[str, Any]]


MISTAKES = {
    name: Mistake(about, name, *row) for about, rows in _PARTS.items() for name, row in rows.items()
}


class Finding(NamedTuple):
    """A mistake by its name in docs/mistakes.md, with the numbers that prove it."""

    name: str
    evidence: str


class Trial(NamedTuple):
    """A layout of arguments by role, its reference, and the output once the function was called."""

    name: str
    arguments: Mapping[str, Any]
    reference: Callable[..., np.ndarray]
    output: np.ndarray = np.zeros(0)

    def distance(self, **wrong: Any) -> float:
        """Difference from the reference, right or with options of mistakes."""
        try:
            with np.errstate(all="ignore"):
                return difference(self.output, self.reference(**wrong))
        except ValueError:  # these options have no meaning for these shapes
            return float("inf")


@dataclass(frozen=True, repr=False)
class Answer:
    """Result of a check: mistakes by name with evidence, and the layout that was compared."""

    check: str
    layout: str
    mistakes: Sequence[Finding] = ()
    right: bool = False
    evidence: str = ""
    trial: Trial = Trial("", {}, np.zeros)

    def __repr__(self) -> str:
        names = ", ".join(finding.name for finding in self.mistakes)
        text = f"{self.check}: {names or 'wrong, by no known mistake'} (layout: {self.layout})"
        if self.right:
            text = f"{self.check}: right, in this layout: {self.layout}"
        for name, evidence in self.mistakes:
            mistake = MISTAKES[name]
            text += f"\n  {name}: {mistake.title}\n    evidence  {evidence}"
            text += f"\n    change    {mistake.change}\n    source    {mistake.source}"
        return escape_controls(text if names else f"{text}\n  {self.evidence}")


class RejectedError(UserError):
    """The function refuses the inputs of a layout; an error of the user's where no other is."""

    reason = ""


def require_meaning(mask: str | None) -> None:
    """Refuses a word for the meaning of a mask's True that is unknown."""
    if mask not in (None, "keep", "hide"):
        raise UserError(f'mask={mask!r}: "keep" or "hide"')


def arranged(array: np.ndarray, axes: str, order: str) -> np.ndarray:
    """An array of axes such as "bhtd" in another order; of an axis that it lacks, the last."""
    array = array[tuple(slice(None) if axis in order else -1 for axis in axes)]
    present = [axis for axis in axes if axis in order]
    array = array.transpose([present.index(axis) for axis in order if axis != "1"])
    return np.expand_dims(array, tuple(i for i, axis in enumerate(order) if axis == "1"))


def named_axes(order: str) -> str:
    """An order of axes in words."""
    return f"[{', '.join(_AXES.get(axis, axis) for axis in order)}]"


def laid_out(axes: str, orders: Iterable[str], layout: Trial) -> list[Trial]:
    """A layout whose arguments with these axes, and its reference's result, are in some orders."""
    layouts = []
    for order in orders:
        moved = {
            role: arranged(value, axes, order) if np.ndim(value) == len(axes) else value
            for role, value in layout.arguments.items()
        }

        def reference(order: str = order, **options: Any) -> np.ndarray:
            return arranged(layout.reference(**options), axes, order)

        layouts.append(Trial(named_axes(order) + layout.name, moved, reference))
    return layouts


class Subject:
    """A user's function, called with values by role.

    Args:
      check: the check that asks, such as "check_attention".
      roles: those that the check can serve, in the usual order; parameters with other names take
        the roles that are left, in this order.
      seconds: limit of a call; the thread of a call that exceeds it keeps running.
    """

    def __init__(self, check: str, fn: Any, roles: Sequence[str], seconds: float = SECONDS):
        if not callable(fn) or isinstance(fn, type):
            raise UserError(f"a check takes a function, and {type(fn).__name__} is none")
        self.check = check
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.doc = fn.__doc__ or ""
        self.rejection: RejectedError | None = None
        self.precision = 0.0  # of the last output, relative
        self._fn = fn
        self._seconds = seconds
        self._libraries = ["numpy", "jax"]
        if "torch" in sys.modules:  # first where the function names it
            names = getattr(getattr(fn, "__code__", None), "co_names", ())
            is_first = "torch" in names or hasattr(fn, "forward") or "torch" in str(fn.__module__)
            self._libraries.insert(0 if is_first else 2, "torch")
        try:
            self._signature = inspect.signature(getattr(fn, "forward", fn))
        except (TypeError, ValueError):  # PyTorch's attention is a function in C
            self._signature = inspect.signature(lambda query, key, value, attn_mask=None, /: None)
        left = list(roles)
        self.roles: dict[str, str] = {}
        untold = []
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            told = [role for role in left if re.fullmatch(_NAMES[role], name.lower())]
            if told:
                self.roles[name] = told[0]
                left.remove(told[0])
            elif parameter.default is parameter.empty:
                untold.append(name)
        self.by_name = set(self.roles.values())
        if not self.roles and not untold:
            raise UserError(f"{self.name} has no parameters: wrap it in one of {', '.join(roles)}")
        if len(untold) > len(left):
            raise UserError(
                f"{self.name}: what is the parameter `{untold[len(left)]}`? Known are "
                f"{', '.join(roles)}; wrap the function in one of these arguments"
            )
        self.roles |= zip(untold, left, strict=False)

    def has(self, *roles: str) -> bool:
        """Returns True if a parameter has one of these roles."""
        return not {*roles}.isdisjoint(self.roles.values())

    def __call__(self, **values: Any) -> Any:
        """Returns NumPy arrays; the function is called with the first library that it takes."""
        errors = []
        for library in self._libraries:
            try:
                result = self._call(values, library)
            except RejectedError as error:
                errors.append(error)
            else:
                self._libraries = [library]
                return result
        raise errors[0]

    def array(self, **values: Any) -> np.ndarray:
        """The first array of the result."""
        result = self(**values)
        first = result[0] if isinstance(result, tuple) and result else result
        with contextlib.suppress(ValueError):  # rows of several lengths
            array = np.asarray(first)
            if array.dtype.kind not in "OUS":  # NumPy would turn None and text into numbers
                is_float = jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
                self.precision = float(jax.numpy.finfo(array.dtype).eps) if is_float else 0.0
                return array.astype(np.float64)
        kind = "nothing" if first is None else f"{type(first).__name__}, no array"
        raise self.rejected(f"it returns {kind}")

    def tolerance(self, size: int) -> float:
        """Largest difference of an output of that size that is equal, in its precision."""
        if size > 1:
            return max(TOLERANCE, 2 * self.precision)
        return max(TOLERANCE_OF_ONE, self.precision / 2)

    def trials(
        self, layouts: Iterable[Trial], readings: Mapping[str, Any] | None = None
    ) -> list[Trial]:
        """Outputs in the layouts that it takes, where a reading of the reference has their shape.

        Args:
          readings: words of the layout -> options that make the reference right, too.
        """
        trials = []
        for layout in layouts:
            try:
                output = self.array(**layout.arguments)
            except RejectedError:
                continue
            for words, options in (readings or {"": {}}).items():
                reference = partial(layout.reference, **options)
                shape = reference().shape
                if output.shape == shape:
                    trials.append(Trial(layout.name + words, layout.arguments, reference, output))
                else:
                    self.rejected(f"it returns the shape {list(output.shape)}, not {list(shape)}")
        return trials

    def rejected(self, reason: str) -> RejectedError:
        """The error of a layout; the first is kept for a function that takes no layout."""
        advice = "wrap it in a function of the usual arguments (docs/mistakes.md)"
        error = RejectedError(f"{self.name}: {reason}; {advice}")
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
        outcome: Future[Any] = Future()

        def target() -> None:
            try:
                with np.errstate(all="ignore"):
                    outcome.set_result(self._fn(*bound.args, **bound.kwargs))
            except BaseException as error:  # also SystemExit: it is the user's function
                outcome.set_exception(error)

        threading.Thread(target=target, daemon=True).start()
        try:
            error = outcome.exception(self._seconds)
        except TimeoutError:
            limit = f"{self._seconds:g} s (`seconds=`)"
            raise UserError(f"{self.name} did not return within {limit}") from None
        if error:
            raise self.rejected(f"it raises {type(error).__name__}: {reason_of(error)}") from error
        for name, argument in arguments.items():
            before = values[self.roles[name]]
            is_array = isinstance(before, np.ndarray)
            if is_array and not np.allclose(to_numpy(argument), before, 1e-6, equal_nan=True):
                raise UserError(
                    f"{self.name} changes its argument `{name}` in place: copy it first"
                )
        return jax.tree.map(to_numpy, outcome.result())


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
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # unknown to NumPy
            return value.float().numpy().astype(jax.numpy.bfloat16)
        return value.numpy()
    return np.asarray(value) if isinstance(value, jax.Array) else value


def difference(output: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference relative to the largest element; a NaN of the reference claims nothing."""
    claimed = np.isfinite(reference)
    if output.shape != reference.shape or 2 * claimed.sum() < claimed.size:
        return float("inf")
    if not np.isfinite(output[claimed]).all():
        return float("inf")
    largest = np.abs(reference[claimed]).max() + 1e-30
    return float(np.abs(output[claimed] - reference[claimed]).max() / largest)


def judged(check: str, layout: str, name: str, evidence: str) -> Answer:
    """The answer where a property of a mistake shows."""
    return Answer(check, layout, [Finding(name, evidence)])


def diagnose(subject: Subject, about: str, trials: Sequence[Trial]) -> Answer:
    """The answer for outputs in several layouts: right in one, else the mistakes that explain it.

    One mistake is preferred to two, and earlier layouts to later ones.

    Raises:
      UserError: there is no output.
    """
    if not trials:
        raise subject.rejection or subject.rejected("it has no output")
    rows = [mistake for mistake in MISTAKES.values() if mistake.about == about]
    singles = [([row.name], wrong) for row in rows for wrong in row.wrong]
    pairs = [
        (first + second, {**options, **others})
        for (first, options), (second, others) in itertools.combinations(singles, 2)
        if first != second and not options.keys() & others.keys()
    ]
    right: list[tuple[list[str], Mapping[str, Any]]] = [([], {})]
    for group in (right, singles, pairs):
        for trial, (names, wrong) in itertools.product(trials, group):
            remaining = trial.distance(**wrong)
            if remaining > subject.tolerance(trial.output.size):
                continue
            apart = trial.distance()
            how = f"by {apart:.2g}" if np.isfinite(apart) else "in its shape or by NaN"
            evidence = f"differs {how} from the right result, by {remaining:.1e} from this one"
            findings = [Finding(name, evidence) for name in names]
            evidence = f"the difference from the reference is {remaining:.1e}"
            return Answer(subject.check, trial.name, findings, not names, evidence, trial)
    nearest = min(trials, key=Trial.distance)
    try:
        first, second = (subject.array(**nearest.arguments) for _ in range(2))
    except RejectedError:  # these arguments lack what changes from call to call
        first = second = nearest.output
    if not np.array_equal(first, second, equal_nan=True):
        evidence = f"a second call gives {(first != second).sum()} other outputs"
        return judged(subject.check, nearest.name, "dropout_at_evaluation", evidence)
    evidence = f"the smallest difference from the reference is {nearest.distance():.2g}"
    return Answer(subject.check, nearest.name, evidence=evidence, trial=nearest)
