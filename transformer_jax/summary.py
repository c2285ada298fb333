# SPDX-License-Identifier: Apache-2.0
"""Short representations of large objects: a few lines in a terminal, a table in a notebook."""

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.errors import escape_controls

MOST_LINES = 12
_MOST_CHARACTERS = 100
_STYLE = "text-align: left"


class Summarized:
    """Base class of objects that show a summary in place of all their contents.

    A dataclass needs `repr=False` to inherit it.
    """

    def summary(self) -> Mapping[str, Any]:
        """Names and values to show, each on a line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """The class, and at most eleven lines of names and values."""
        shown = _shown(self.summary())
        width = max(map(len, shown), default=0)
        lines = (f"  {name:{width}}  {value}" for name, value in shown.items())
        return "\n".join([type(self).__name__, *lines])

    def _repr_html_(self) -> str:
        """A table of HTML with the class and the values, all text escaped."""
        rows = "".join(
            f'<tr><th style="{_STYLE}">{html.escape(name)}</th>'
            f'<td style="{_STYLE}">{html.escape(value)}</td></tr>'
            for name, value in _shown(self.summary()).items()
        )
        title = html.escape(type(self).__name__)
        return f'<table><caption style="{_STYLE}"><b>{title}</b></caption>{rows}</table>'


def numbers(values: Mapping[str, Any]) -> str:
    """Names and numbers on one line: "loss 1.23, bleu 4.56"."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 example", "2,000 examples"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shape(array: Any) -> str:
    """The dtype and the shape of an array: "float32 [2, 4, 9, 9]"."""
    return f"{array.dtype} {list(array.shape)}"


def aligned(
    cells: Sequence[Sequence[str]], pad: Callable[[str, int], str] = str.rjust
) -> list[str]:
    """Lines of a table whose columns have equal widths; `pad` fills those after the first."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *values in cells:
        padded = map(pad, values, widths[1:])
        lines.append("  ".join([name.ljust(widths[0]), *padded]).rstrip())
    return lines


def _shown(summary: Mapping[str, Any]) -> dict[str, str]:
    """The values as one short line each; those beyond `MOST_LINES` are counted."""
    lines = {_short(str(name)): _short(str(value)) for name, value in summary.items()}
    if len(lines) < MOST_LINES:
        return lines
    first = dict(list(lines.items())[: MOST_LINES - 2])  # the title and "..." are two more lines
    return first | {"...": f"{len(lines) - len(first)} more"}


def _short(text: str) -> str:
    """One line without control characters, cut in the middle if long, a list between entries."""
    line = escape_controls(" ".join(text.split()))
    if len(line) <= _MOST_CHARACTERS:
        return line
    half = (_MOST_CHARACTERS - 5) // 2
    start = line[:half].rpartition(", ")[0] or line[:half]
    end = line[-half:].partition(", ")[2] or line[-half:]
    return f"{start} ... {end}"
