# SPDX-License-Identifier: Apache-2.0
"""Registries: the entries that a config field can name."""

import contextlib
import functools
import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from transformer_jax.errors import UserError
from transformer_jax.fields import Configurable, fault_of_options, fields_of
from transformer_jax.suggestions import VALUE_SYNONYMS, suggest

_PACKAGE = "transformer_jax."


class _Registered[T](NamedTuple):
    """An entry, the module that registered it (None: the registry began with it), its options."""

    entry: T
    module: str | None
    options: type | None


class Registry[T](Mapping[str, T]):
    """Entries by name, for one config field.

    An entry may have options, a frozen dataclass (`fields`): its attribute `options`, or an
    argument of `register`. They are the config fields "section.name.option".

    Example:
      >>> ACTIVATIONS: Registry[Callable] = Registry("model.activation", {"relu": nn.relu})
      >>> @ACTIVATIONS.register("snake")
      ... def snake(x):
      ...     return x + jnp.square(jnp.sin(x))

    Attributes:
      field: "section.field" of the config.
      section: section of the config that holds it.
      several: the field may name several entries, separated by commas.
    """

    def __init__(
        self, field: str, entries: Mapping[str, T] | None = None, *, several: bool = False
    ) -> None:
        self.field = field
        self.section = field.partition(".")[0]
        self.several = several
        self._entries: dict[str, _Registered[T]] = {}
        self._fields: frozenset[str] = frozenset()
        _REGISTRIES.append(self)
        self.restore(entries or {})

    @overload
    def register(self, name: str, *, options: type | None = None) -> Callable[[T], T]: ...

    @overload
    def register(self, name: str, entry: T, *, options: type | None = None) -> T: ...

    def register(
        self, name: str, entry: T | None = None, *, options: type | None = None
    ) -> T | Callable[[T], T]:
        """Adds an entry under a new name; without `entry`, returns a decorator that does.

        The module that registered a name may register it again, as a notebook's cell can run twice.

        Args:
          name: the value of the config field that chooses the entry.
          entry: the entry.
          options: its options, a frozen dataclass; None: its attribute `options`, if it has one.

        Raises:
          UserError: the name is taken or the name of a config field, or the options are no fields
            that a config can have.
        """
        module = sys._getframe(1).f_globals.get("__name__", "")  # of the caller
        if entry is None:
            return lambda decorated: self._add(name, decorated, module, options)
        return self._add(name, entry, module, options)

    def _add(self, name: str, entry: T, module: str, options: type | None) -> T:
        if name in self._entries and self._entries[name].module != module:
            raise UserError(f"{self.field}: the name {name!r} is taken; choose another one")
        options = options or getattr(entry, "options", None)
        self._check_fields(name, options)
        self._replace(self._entries | {name: _Registered(entry, module, options)})
        return entry

    def _check_fields(self, name: str, options: type | None) -> None:
        """Refuses an entry whose options cannot be config fields of its section."""
        section = self.section
        if name in self._fields:
            raise UserError(
                f"{self.field}: {name!r} is the config field {section}.{name}; choose another name"
            )
        if options is None:
            return
        if not name.isidentifier():
            raise UserError(
                f"{self.field}: {name!r} has options, the config fields {section}.{name}.*, so its "
                "name must consist of letters, digits and _"
            )
        fault = fault_of_options(options)
        if fault:
            shown = getattr(options, "__name__", options)
            raise UserError(f"{self.field}: the options {shown} of {name!r}: it {fault}")
        option_names = {field.rpartition(".")[2] for field in fields_of(section, options)}
        shadowed = sorted(option_names & self._fields)
        if shadowed:
            raise UserError(
                f"{self.field}: the option {shadowed[0]!r} of {name!r} has the name of the config "
                f"field {section}.{shadowed[0]}; read that field, or choose another name"
            )
        for other in _REGISTRIES:
            if other.field != self.field and other.section == section and other.options(name):
                raise UserError(
                    f"{self.field}: {other.field} has options under the name {name!r} too; choose "
                    "another name"
                )

    def reserve(self, fields: Collection[str]) -> None:
        """Names the config fields of the section, which neither entries nor options may have.

        Raises:
          UserError: a registered entry has.
        """
        self._fields = frozenset(fields)
        for name, registered in self._entries.items():
            if registered.module is not None:
                self._check_fields(name, registered.options)

    def options(self, name: str) -> type | None:
        """Dataclass of an entry's options; None if there is no such entry, or it has none."""
        return self._entries[name].options if name in self._entries else None

    @functools.cached_property
    def unread(self) -> Mapping[str, frozenset[str]]:
        """The config fields without an effect by entry, of those that others here read.

        A field that any entry lists in `reads` is read only by the entries that list it, and by
        those without `reads`: layer kinds by an architecture, momenta by an optimizer, files by a
        data set. A field in an entry's `ignores` is read by all others unless they ignore it too.
        """
        declared = {
            field for entry in self.values() for field in getattr(entry, "reads", None) or ()
        }
        unread = {}
        for name, entry in self.items():
            reads = getattr(entry, "reads", None)
            others = set() if reads is None else declared - set(reads)
            unread[name] = frozenset(others.union(getattr(entry, "ignores", ())))
        return unread

    def configured(self, name: str, section: Configurable) -> T:
        """Entry of a name, as `find`; a function that has options gets those of the section as its
        `options`."""
        entry: Any = self.find(name)
        cls = self.options(name)
        if cls is not None:
            entry = functools.partial(entry, options=section.options_of(cls))
        return entry

    def find(self, name: str) -> T:
        """Entry of a name; otherwise ValueError, which lists all names and suggests the nearest.

        Raises:
          UserError: a method of the entry cannot be called as that of its base class.
        """
        if name in self._entries:
            entry = self._entries[name].entry
            fault = _signature_fault(entry)
            if fault:
                raise UserError(f"{self.field} {name!r}: {fault}")
            return entry
        field = self.field.partition(".")[2]
        if not self._entries:
            raise ValueError(f"{field} is {name!r}; give the module that registers it (--modules)")
        hint = suggest(name, self._entries, VALUE_SYNONYMS.get(self.field))
        raise ValueError(f"{field} is {name!r}, not one of {', '.join(self._entries)}{hint}")

    def module_of(self, name: str) -> str | None:
        """Module that registered a name; None for the initial entries."""
        return self._entries[name].module if name in self._entries else None

    def restore(self, entries: Mapping[str, T]) -> None:
        """Replaces all entries; names that stay keep their module and their options."""
        registered = {}
        for name, entry in entries.items():
            initial = _Registered(entry, None, getattr(entry, "options", None))
            registered[name] = self._entries.get(name, initial)._replace(entry=entry)
        self._replace(registered)

    def _replace(self, entries: Mapping[str, _Registered[T]]) -> None:
        global _changes
        _changes += 1
        self._entries = dict(entries)
        vars(self).pop("unread", None)

    def __getitem__(self, name: str) -> T:
        return self._entries[name].entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.field!r}: {', '.join(self._entries)})"


_REGISTRIES: list[Registry[Any]] = []
_changes = 0


def number_of_changes() -> int:
    """Number of registrations and removals in all registries; tables of entries depend on it."""
    return _changes


def imported(path: str) -> Callable[..., Any]:
    """Makes an entry that imports its function when it is called: a run needs few of them.

    Args:
      path: "package.module:function", or "package.module:Class.method".
    """
    module, _, names = path.partition(":")

    def call(*args: Any, **named: Any) -> Any:
        function = operator.attrgetter(names)(importlib.import_module(module))
        return function(*args, **named)

    return call


def _signature_fault(entry: Any) -> str | None:
    """Says which method of a class outside of this package cannot be called as the method of its
    base class in it; None if all can."""
    if not isinstance(entry, type):
        entry = getattr(getattr(entry, "build", None), "__self__", None)  # of a task
    if not isinstance(entry, type) or entry.__module__.startswith(_PACKAGE):
        return None
    for base in entry.__mro__:
        if not base.__module__.startswith(_PACKAGE):
            continue
        for name, plain in vars(base).items():
            override = inspect.getattr_static(entry, name)
            public = name == "__call__" or not name.startswith("_")
            if public and override is not plain and not _accepts(override, plain):
                taken, expected = (
                    ", ".join(parameter.name for parameter in _parameters_of(method) or ())
                    for method in (override, plain)
                )
                return f"{name} of {file_of(entry)} takes ({taken}); it is called with ({expected})"
    return None


def _accepts(override: Any, plain: Any) -> bool:
    """Returns True if a method takes all arguments of another one; in doubt, too."""
    expected = _parameters_of(plain)
    if expected is None or _parameters_of(override) is None:
        return True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(parameter.kind in variadic for parameter in expected):
        return True
    named = [p.name for p in expected if p.kind is inspect.Parameter.KEYWORD_ONLY]
    try:
        signature = inspect.Signature(_parameters_of(override))
        signature.bind(*[None] * (len(expected) - len(named)), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _parameters_of(method: Any) -> list[inspect.Parameter] | None:
    """Parameters after `self`; None of what is no method."""
    function = getattr(method, "__func__", method)
    if not inspect.isfunction(function):
        return None
    parameters = [*inspect.signature(function).parameters.values()]
    takes_any = bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
    return parameters if takes_any or isinstance(method, staticmethod) else parameters[1:]


def file_of(component: Any) -> str:
    """Name of the file that defines a component: a class, a function, or an instance of a class."""
    defined = component if inspect.isroutine(component) else component.__class__
    defined = component if isinstance(component, type) else defined
    try:
        return os.path.basename(inspect.getsourcefile(inspect.unwrap(defined)) or "a cell")
    except (TypeError, OSError):
        return str(getattr(defined, "__name__", defined))


def require_shape(component: Any, method: str, x: Any, shape: Sequence[int | None]) -> Any:
    """Returns x, what a method of a component (or a function) returned, if it has this shape.

    Args:
      shape: None for an axis of any size.

    Raises:
      UserError: it has another one, or is no array.
    """
    found = getattr(x, "shape", None)
    if found is not None and len(found) == len(shape):
        pairs = zip(found, shape, strict=True)
        if all(wanted in (None, size) for size, wanted in pairs):
            return x
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    raise UserError(
        f"{method} of {file_of(component)} returned {_described(x)}; it must return [{wanted}]"
    )


def require_broadcast(component: Any, method: str, x: Any, shape: Sequence[int]) -> Any:
    """As `require_shape`, but any axis may have size 1."""
    sizes = getattr(x, "shape", ())
    if len(sizes) == len(shape):
        pairs = zip(sizes, shape, strict=True)
        shape = [1 if size == 1 else wanted for size, wanted in pairs]
    return require_shape(component, method, x, shape)


def require_pair(component: Any, method: str, result: Any, parts: str) -> Any:
    """Returns what a method returned, if it is a pair of `parts`; UserError otherwise."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise UserError(
        f"{method} of {file_of(component)} returned {_described(result)}; it must return {parts}"
    )


def _described(x: Any) -> str:
    """The shape of an array, or the type of another value."""
    found = getattr(x, "shape", None)
    return type(x).__name__ if found is None else f"[{', '.join(map(str, found))}]"


def options_of_entry(section: str, name: str) -> type | None:
    """Dataclass of the options of an entry, in any registry of a section; None if it has none."""
    for registry in _REGISTRIES:
        options = registry.options(name) if registry.section == section else None
        if options:
            return options
    return None


@contextlib.contextmanager
def reload_registrations(module: str) -> Iterator[None]:
    """Context that removes a module's entries, so that its code can run again.

    After an exception all registries are restored. Other modules that registered entries inside the
    context are removed from `sys.modules`, so that the next import runs them again.
    """
    before = [(registry, registry._entries) for registry in _REGISTRIES]
    for registry, entries in before:
        registry._replace({name: e for name, e in entries.items() if e.module != module})
    try:
        yield
    except BaseException:
        for registry, entries in before:
            modules = {registered.module for registered in entries.values()}
            for registered in registry._entries.values():
                if registered.module not in modules:
                    sys.modules.pop(str(registered.module), None)
            registry._replace(entries)
        raise
