# SPDX-License-Identifier: Apache-2.0
"""Calls of a user's function: roles of its parameters by name, its library, a limit of time."""

import inspect
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import UserError, reason_of

SECONDS = 30.0
"""Limit of one call: compiling a small program takes up to a few seconds."""

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
"""Role -> regular expression of the names of parameters that have it."""


class RejectedError(Exception):
    """The function refuses the inputs of a layout, or returns another shape."""


class Subject:
    """A user's function, called with values by role.

    Args:
      fn: the function or module.
      roles: those that the check can serve, in the usual order; parameters with other names take
        the roles that are left, in this order.
      seconds: limit of a call; the thread of a call that exceeds it is left behind.
    """

    def __init__(self, fn: Callable[..., Any], roles: Sequence[str], seconds: float = SECONDS):
        if not callable(fn):
            raise UserError(f"a check takes a function, and {type(fn).__name__} is none")
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.library: str | None = None
        self.first_reason = ""
        self._fn = fn
        self._seconds = seconds
        self.roles, self.required, self.by_name = _roles_of(fn, roles, self.name)

    def has(self, *roles: str) -> bool:
        """Returns True if the function has parameters of all these roles."""
        return set(roles) <= set(self.roles.values())

    def __call__(self, **values: Any) -> Any:
        """The result as NumPy arrays, in the first library in which the function takes the values.

        Raises:
          RejectedError: it takes them in none.
          UserError: it does not return in time, or changes its arguments.
        """
        missing = [name for name in self.required if self.roles[name] not in values]
        if missing:
            raise RejectedError(f"`{missing[0]}` has no value here")
        reasons = []
        for library in [self.library] if self.library else libraries(self._fn):
            try:
                result = self._call(values, library)
            except RejectedError as error:
                reasons.append(str(error))
                continue
            self.library = library
            return result
        self.first_reason = self.first_reason or reasons[0]
        raise RejectedError(reasons[0])

    def array(self, shape: Sequence[int], **values: Any) -> np.ndarray:
        """The first array of the result, which must have this shape."""
        result = self(**values)
        first = result[0] if isinstance(result, (tuple, list)) else result
        try:
            array = np.asarray(first, np.float64)
        except (TypeError, ValueError) as error:
            reason = f"it returns {type(first).__name__}, no array"
            self.first_reason = self.first_reason or reason
            raise RejectedError(reason) from error
        if array.shape != tuple(shape):
            reason = f"it returns the shape {list(array.shape)}, not {list(shape)}"
            self.first_reason = self.first_reason or reason
            raise RejectedError(reason)
        return array

    def refusal(self) -> UserError:
        """What to tell a user whose function took no layout."""
        return UserError(
            f"{self.name}: no layout that was tried works; in the first, {self.first_reason}. "
            "Wrap it in a function of the usual arguments (docs/mistakes.md)"
        )

    def _call(self, values: Mapping[str, Any], library: str) -> Any:
        arguments = {}
        for name, role in self.roles.items():
            if role in values:
                arguments[name] = converted(values[role], library)
        before = {name: to_numpy(value) for name, value in arguments.items()}
        before = {name: np.array(v) for name, v in before.items() if isinstance(v, np.ndarray)}
        result = in_time(lambda: self._bound(arguments), self._seconds, self.name)
        for name, array in before.items():
            if not np.array_equal(array, to_numpy(arguments[name])):
                raise UserError(
                    f"{self.name} changes its argument `{name}` in place: copy it first"
                )
        return to_numpy(result)

    def _bound(self, arguments: Mapping[str, Any]) -> Any:
        parameters = _parameters(self._fn)
        if parameters is None:
            return self._fn(*arguments.values())
        positional = []
        named = {}
        leading = True
        for name, parameter in parameters.items():
            if name not in arguments:
                leading = False
            elif leading and parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append(arguments[name])
            else:
                named[name] = arguments[name]
        return self._fn(*positional, **named)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters of a function or of a module's `forward`; None for one written in C."""
    try:
        return inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):
        return None


def _roles_of(
    fn: Callable[..., Any], roles: Sequence[str], title: str
) -> tuple[dict[str, str], list[str], set[str]]:
    """Role of each parameter, parameters without a default, and roles that a name has told."""
    known = _parameters(fn)
    if known is None:
        return {role: role for role in roles[:4]}, list(roles[:3]), set()
    parameters = [*known.values()]
    parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    named: dict[str, str] = {}
    for parameter in parameters:
        for role in roles:
            if role not in named.values() and re.fullmatch(_NAMES[role], parameter.name.lower()):
                named[parameter.name] = role
                break
    by_name = set(named.values())
    required = [p.name for p in parameters if p.default is p.empty]
    left = [role for role in roles if role not in named.values()]
    for name in required:
        if name not in named:
            if not left:
                raise UserError(
                    f"{title}: what is the parameter `{name}`? Known are {', '.join(roles)}; "
                    "wrap the function in one of these arguments"
                )
            named[name] = left.pop(0)
    order = {p.name: named[p.name] for p in parameters if p.name in named}
    return order, required, by_name


def libraries(fn: Callable[..., Any]) -> list[str]:
    """Libraries to try: those whose modules the function names come first."""
    torch = sys.modules.get("torch")
    names = ["numpy", "jax"] + (["torch"] if torch else [])
    if torch and (isinstance(fn, torch.nn.Module) or type(fn).__module__.startswith("torch")):
        return ["torch"]
    if getattr(fn, "__module__", None) and str(fn.__module__).startswith("torch"):
        return ["torch"]
    code = getattr(fn, "__code__", None)
    spaces = getattr(fn, "__globals__", {})
    used = [spaces.get(name) for name in getattr(code, "co_names", ())]
    cells = getattr(fn, "__closure__", None) or ()
    used += [cell.cell_contents for cell in cells]
    modules = [getattr(v, "__name__", "") + " " + str(getattr(v, "__module__", "")) for v in used]
    modules += [type(value).__module__ for value in used]
    named = [n for n in names if any(re.search(rf"\b{n}\b", module) for module in modules)]
    if torch and "torch" in named:
        return ["torch", "numpy"]
    return sorted(names, key=lambda name: name not in named)


def converted(value: Any, library: str) -> Any:
    """An array, or a list of arrays, in a library; other values stay."""
    if isinstance(value, list):
        return [converted(element, library) for element in value]
    if isinstance(value, tuple):
        return tuple(converted(element, library) for element in value)
    if not isinstance(value, np.ndarray):
        return value
    if library == "jax":
        return jax.numpy.asarray(value)
    if library == "torch":
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(np.array(value))
        return tensor.float() if tensor.is_floating_point() else tensor
    return np.array(value)


def to_numpy(value: Any) -> Any:
    """Arrays of any library as NumPy's, also those in tuples and lists."""
    if isinstance(value, tuple):
        return tuple(to_numpy(element) for element in value)
    if isinstance(value, list):
        return [to_numpy(element) for element in value]
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return value
        return np.asarray(value)
    return value


def in_time(call: Callable[[], Any], seconds: float, name: str) -> Any:
    """Result of a call in a thread of its own; its exception as a RejectedError."""
    outcome: dict[str, Any] = {}

    def target() -> None:
        try:
            with np.errstate(all="ignore"):
                outcome["result"] = call()
        except BaseException as error:  # also SystemExit: it is the user's function
            outcome["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise UserError(f"{name} did not return within {seconds:g} s; `seconds=` changes the limit")
    if "error" in outcome:
        error = outcome["error"]
        if isinstance(error, UserError):
            raise error
        reason = f"it raises {type(error).__name__}: {reason_of(error)}"
        raise RejectedError(reason) from error
    return outcome["result"]
