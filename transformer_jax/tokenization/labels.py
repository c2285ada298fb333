"""The classes of a classification or tagging set, each a whole string."""

import json
from dataclasses import dataclass
from functools import cached_property

from transformer_jax.errors import UserError

_SHOWN = 5


@dataclass(frozen=True)
class Labels:
    """Labels to ids, 0 and up, and back; immutable.

    Attributes:
      names: the labels, each once; a label's id is its place.

    Raises:
      ValueError: there is no name, or they are not strings that differ.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.names):
            raise ValueError("labels must be strings")
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError("labels must differ, and be at least one")

    @classmethod
    def from_json(cls, content: bytes) -> "Labels":
        """What `to_json` wrote.

        Raises:
          ValueError: it is something else.
        """
        try:
            names = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("this is no list of labels") from error
        if not isinstance(names, list):
            raise ValueError("this is no list of labels")
        return cls(tuple(names))

    def to_json(self) -> bytes:
        """A JSON list of the names, one a line."""
        return (json.dumps(self.names, indent=0) + "\n").encode()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def vocab_size(self) -> int:
        """Number of labels."""
        return len(self.names)

    def encode(self, label: str) -> int:
        """The id of a label.

        Raises:
          UserError: it is none of them.
        """
        try:
            return self._ids[label]
        except KeyError:
            more = f", ... ({len(self)} in all)" if len(self) > _SHOWN else ""
            raise UserError(
                f"label {label!r} was never seen in training; "
                f"the labels are {', '.join(map(repr, self.names[:_SHOWN]))}{more}"
            ) from None

    def decode(self, label_id: int) -> str:
        """The label of an id."""
        return self.names[label_id]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}
