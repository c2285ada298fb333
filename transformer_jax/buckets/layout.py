"""What of a folder is whole or not there, and what is passing."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """What a mirror must know of the files that it brings to a bucket, by their names.

    Attributes:
      unit: matches the beginning of a name up to the folder that is whole or not there, such as
        that of a checkpoint; names that it does not match stand for themselves.
      seal: the file of such a folder that is written last and deleted first.
      listed: the files that a seal tells of, by their names in its folder.
      passing: matches names that are on their way to another, and stay where they are.
      damage: what is wrong with such a folder on disk; None where it is as it was written.
    """

    unit: re.Pattern[str]
    seal: str
    listed: Callable[[Path], Collection[str]]
    passing: re.Pattern[str]
    damage: Callable[[Path], str | None]

    def unit_of(self, name: str) -> str | None:
        """The unit that a file belongs to."""
        found = self.unit.match(name)
        return found[0] if found else None

    def seal_of(self, unit: str) -> str:
        """The name of a unit's seal."""
        return f"{unit}/{self.seal}"

    def is_seal(self, name: str) -> bool:
        """Whether a file is the seal of a unit."""
        unit = self.unit_of(name)
        return unit is not None and name == self.seal_of(unit)

    def settled(self, names: Iterable[str]) -> set[str]:
        """Those that are neither passing nor in a unit without its seal."""
        names = {name for name in names if not self.passing.search(name)}
        units = {name: self.unit_of(name) for name in names}
        return {name for name, unit in units.items() if not unit or self.seal_of(unit) in names}
