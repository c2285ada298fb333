"""stdin, stdout and stderr, which a user may have closed, filled or left behind."""

import contextlib
import os
import sys
from collections.abc import Iterator
from io import BufferedIOBase
from typing import TextIO, cast

from transformer_jax.errors import UserError


def open_standard() -> None:
    """Opens /dev/null in place of each of the descriptors 0, 1 and 2 that is closed.

    Otherwise a file of the run would be opened there, and libraries would print into it. Who needs
    a closed stdin or stdout is told by `read_stdin` and `require_stdout`; messages are dropped.
    """
    for descriptor in range(3):
        try:
            # Otherwise a read would end, and a write would fail, where it ought to wait.
            os.set_blocking(descriptor, True)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # at the lowest free descriptor, which is this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def require_stdout() -> None:
    """Raises UserError where there is no stdout for results."""
    if sys.stdout is None:
        raise UserError("stdout is closed, where results go; open it, as by > FILE")


def read_stdin() -> BufferedIOBase:
    """The bytes of stdin; UserError where it is closed."""
    if sys.stdin is None:
        raise UserError("stdin is closed, where examples come from; open it, as by < FILE")
    return cast(BufferedIOBase, sys.stdin.buffer)  # typeshed has no read1 for it


def write(text: str) -> None:
    """Writes results to stdout: UTF-8, and a name that is no UTF-8 as the bytes that it has."""
    with _writing():
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def flush() -> None:
    """Hands on what was written."""
    with _writing():
        sys.stdout.flush()


def tell(message: str) -> None:
    """A line on stderr; where that takes nothing, this and what follows are dropped."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Sends what is left in a stream nowhere: the interpreter would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        give_up(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"cannot write to stdout: {error.strerror}") from error
