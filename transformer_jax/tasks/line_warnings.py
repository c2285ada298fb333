# SPDX-License-Identifier: Apache-2.0
"""Warnings about the lines of a call, one message of each kind however many lines it names."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence

from transformer_jax.tokenization import Tokenizer

logger = logging.getLogger(__name__)

MOST_NUMBERS = 8
"""Largest number of lines that one message lists."""


@dataclasses.dataclass(frozen=True)
class LineWarnings:
    """Warnings about a line of a call.

    Attributes:
      number: of the line.
      name: what messages call the line.
      kinds: messages about all lines of the call, by number, by what several lines have in common.
    """

    number: int = 1
    name: str = "the text"
    kinds: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)

    def about(self, number: int, name: str | None = None) -> "LineWarnings":
        """Warnings about another line of the call."""
        return LineWarnings(number, name or f"line {number}", self.kinds)

    def add(self, message: str, several: str) -> None:
        """Adds the warning `message`. If other lines have one of its kind, their message is
        "5 of 60 lines {several}: 3, 9, ..."."""
        self.kinds.setdefault(several, {})[self.number] = message

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Token ids of a text. Unknown pieces are a warning."""
        ids = tokenizer.encode(text)
        num_unknown = tokenizer.count_unknown(ids)
        if num_unknown:
            message = f"{self.name} has {num_unknown} pieces unknown to the tokenizer"
            self.add(message, "have pieces unknown to the tokenizer")
        return ids

    def cut(self, ids: list[int], room: int, limit: str) -> list[int]:
        """The first `room` token ids. That there are more is a warning; `limit` says why."""
        if len(ids) > room:
            message = f"{self.name} has {len(ids)} tokens; only the first {room} are read ({limit})"
            self.add(message, f"are cut to the first {room} tokens ({limit})")
        return ids[:room]


@contextlib.contextmanager
def collect_warnings(num_lines: int = 1) -> Iterator[LineWarnings]:
    """Collects the warnings of a call, and logs them at the end of the block."""
    warnings = LineWarnings()
    yield warnings
    for several, messages in warnings.kinds.items():
        if len(messages) == 1:
            logger.warning("%s", *messages.values())
            continue
        numbers = [str(number) for number in messages][:MOST_NUMBERS]
        if len(messages) > MOST_NUMBERS:
            numbers.append("...")
        listed = ", ".join(numbers)
        logger.warning("%d of %d lines %s: %s", len(messages), num_lines, several, listed)


def read_lines[Line, T](
    lines: Sequence[Line], first_line: int, read: Callable[[Line, LineWarnings], T]
) -> list[T]:
    """Reads the lines of a call, which are numbered from `first_line`."""
    with collect_warnings(len(lines)) as warnings:
        return [read(line, warnings.about(number)) for number, line in enumerate(lines, first_line)]
