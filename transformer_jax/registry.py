# SPDX-License-Identifier: Apache-2.0
"""Registries: the entries that a config field can name."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

from transformer_jax.errors import UserError
from transformer_jax.suggestions import VALUE_SYNONYMS, suggest


class Registry[T](Mapping[str, T]):
    """Entries by name, for one config field.

    Example:
      >>> ACTIVATIONS: Registry[Callable] = Registry("model.activation", {"relu": nn.relu})
      >>> @ACTIVATIONS.register("snake")
      ... def snake(x):
      ...     return x + jnp.square(jnp.sin(x))

    Attributes:
      field: "section.field" of the config.
      several: the field may name several entries, separated by commas.
    """

    def __init__(
        self, field: str, entries: Mapping[str, T] | None = None, *, several: bool = False
    ) -> None:
        self.field, self.several = field, several
        self._entries: dict[str, T] = dict(entries or {})
        self._modules: dict[str, str] = {}
        _REGISTRIES.append(self)

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...

    @overload
    def register(self, name: str, entry: T) -> T: ...

    def register(self, name: str, entry: T | None = None) -> T | Callable[[T], T]:
        """Adds an entry under a new name; without `entry`, returns a decorator that does.

        The module that registered a name may register it again, as a notebook's cell can run twice.

        Raises:
          UserError: the name is taken.
        """
        module = sys._getframe(1).f_globals.get("__name__", "")  # of the caller
        if entry is None:
            return lambda decorated: self._add(name, decorated, module)
        return self._add(name, entry, module)

    def _add(self, name: str, entry: T, module: str) -> T:
        if name in self._entries and self._modules.get(name) != module:
            raise UserError(f"{self.field}: the name {name!r} is taken; choose another one")
        self._entries[name] = entry
        self._modules[name] = module
        return entry

    def find(self, name: str) -> T:
        """Entry of a name; otherwise ValueError, which lists all names and suggests the nearest."""
        if name in self._entries:
            return self._entries[name]
        known = f"not one of {', '.join(self._entries)}"
        hint = suggest(name, self._entries, VALUE_SYNONYMS.get(self.field))
        raise ValueError(f"{self.field.partition('.')[2]} is {name!r}, {known}{hint}")

    def module_of(self, name: str) -> str | None:
        """Module that registered a name; None for the initial entries."""
        return self._modules.get(name)

    def restore(self, entries: Mapping[str, T], modules: Mapping[str, str] | None = None) -> None:
        """Replaces all entries; `modules` names the modules that registered them."""
        modules = self._modules if modules is None else modules
        self._entries = dict(entries)
        self._modules = {name: modules[name] for name in entries if name in modules}

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.field!r}: {', '.join(self._entries)})"


_REGISTRIES: list[Registry[Any]] = []


@contextlib.contextmanager
def reload_registrations(module: str) -> Iterator[None]:
    """Context that removes a module's entries, so that its code can run again.

    After an exception all registries are restored. Other modules that registered entries inside the
    context are removed from `sys.modules`, so that the next import runs them again.
    """
    before = [(registry, dict(registry), dict(registry._modules)) for registry in _REGISTRIES]
    for registry, entries, modules in before:
        registry.restore({name: e for name, e in entries.items() if modules.get(name) != module})
    try:
        yield
    except BaseException:
        for registry, entries, modules in before:
            for added in set(registry._modules.values()) - set(modules.values()):
                sys.modules.pop(added, None)
            registry.restore(entries, modules)
        raise
