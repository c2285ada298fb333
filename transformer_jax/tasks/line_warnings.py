# SPDX-License-Identifier: Apache-2.0
"""Warnings about the lines of a call, one message of each kind however many lines it names."""

import contextlib
import logging
from collections.abc import Iterator

from transformer_jax.tokenization import Tokenizer

logger = logging.getLogger(__name__)

MOST_NUMBERS = 8
"""Largest number of lines that one message lists."""


class LineWarnings:
    """Warnings about the lines of a call, by what several lines have in common."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[int, str]] = {}

    def add(self, number: int, message: str, several: str) -> None:
        """Adds the warning `message` about a line. If there are more of its kind, their message is
        "5 of 60 lines {several}: 3, 9, ..."."""
        self._kinds.setdefault(several, {})[number] = message

    def encode(self, tokenizer: Tokenizer, text: str, number: int, name: str) -> list[int]:
        """Token ids of the text `name` of a line. Unknown pieces are a warning."""
        ids = tokenizer.encode(text)
        num_unknown = tokenizer.count_unknown(ids)
        if num_unknown:
            message = f"{name} has {num_unknown} pieces unknown to the tokenizer"
            self.add(number, message, "have pieces unknown to the tokenizer")
        return ids

    def cut(self, ids: list[int], room: int, limit: str, number: int, name: str) -> list[int]:
        """The first `room` token ids of the text `name` of a line. That there are more is a
        warning; `limit` says why."""
        if len(ids) > room:
            message = f"{name} has {len(ids)} tokens; only the first {room} are read ({limit})"
            self.add(number, message, f"are cut to the first {room} tokens ({limit})")
        return ids[:room]

    def log(self, num_lines: int) -> None:
        """Logs the warnings of a call with that many lines."""
        for several, messages in self._kinds.items():
            if len(messages) == 1:
                logger.warning("%s", *messages.values())
                continue
            numbers = [str(number) for number in messages][:MOST_NUMBERS]
            if len(messages) > MOST_NUMBERS:
                numbers.append("...")
            listed = ", ".join(numbers)
            logger.warning("%d of %d lines %s: %s", len(messages), num_lines, several, listed)


@contextlib.contextmanager
def collect_warnings(num_lines: int = 1) -> Iterator[LineWarnings]:
    """Collects the warnings of a call, and logs them at the end of the block."""
    warnings = LineWarnings()
    yield warnings
    warnings.log(num_lines)
