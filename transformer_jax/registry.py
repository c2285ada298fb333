"""Registries: the names that a field of the config may take, and what each stands for."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import overload

from transformer_jax.errors import UserError


class Registry[T](Mapping[str, T]):
    """What each name of one config field stands for.

    Example:
      >>> ACTIVATIONS: Registry[Callable] = Registry("model.activation", {"relu": nn.relu})
      >>> @ACTIVATIONS.register("squared_relu")
      ... def squared_relu(x):
      ...     return jnp.square(nn.relu(x))

    Attributes:
      field: "section.field" of the config.
    """

    def __init__(self, field: str, entries: Mapping[str, T] | None = None):
        self.field = field
        self._entries: dict[str, T] = dict(entries or {})

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...

    @overload
    def register(self, name: str, entry: T) -> T: ...

    def register(self, name: str, entry: T | None = None) -> T | Callable[[T], T]:
        """Adds an entry under a new name; without `entry`, a decorator that does.

        Raises:
          UserError: the name is taken.
        """
        if entry is None:
            return lambda decorated: self.register(name, decorated)
        if name in self._entries:
            raise UserError(f"{self.field}: the name {name!r} is taken; choose another one")
        self._entries[name] = entry
        return entry

    def find(self, name: str) -> T:
        """The entry of a name; ValueError if there is none, which names all and the nearest."""
        if name in self._entries:
            return self._entries[name]
        known = f"not one of {', '.join(self._entries)}"
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{self.field.partition('.')[2]} is {name!r}, {known}{hint}")

    def restore(self, entries: Mapping[str, T]) -> None:
        """Holds these entries alone: what a module registered is taken back."""
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.field!r}: {', '.join(self._entries)})"
