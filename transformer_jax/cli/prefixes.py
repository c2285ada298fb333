"""What the output of each line is to start with, from a file beside the lines."""

from collections.abc import Callable

from transformer_jax.cli.lines import unescape
from transformer_jax.errors import UserError


def open_prefixes(path: str | None) -> Callable[[int, list[str]], dict[str, list[str]]]:
    """(number of the first, lines) -> the option that says what their outputs start with.

    Raises:
      UserError: the file cannot be read; later, it has fewer lines than the input.
    """
    if path is None:
        return lambda number, lines: {}
    from transformer_jax.data.files.text import TextLines

    kept = TextLines(path, once=True)

    def of_lines(number: int, lines: list[str]) -> dict[str, list[str]]:
        if number + len(lines) - 1 > len(kept):
            raise UserError(f"--prefixes: {path} has {len(kept)} lines, fewer than the input")
        return {"prefixes": [unescape(kept[number - 1 + i]) for i in range(len(lines))]}

    return of_lines
