# SPDX-License-Identifier: Apache-2.0
"""Exceptions for user errors, which are one line, and for runs that were asked to stop.

Messages quote texts of others: names of files and tensors, addresses, replies of servers.
`escape_controls` makes them safe to print.
"""

import contextlib
import re
from collections.abc import Iterator

RESUMABLE = 75
"""Exit status of a run that the same command resumes: EX_TEMPFAIL of sysexits."""


_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and line feed
    "\u2028\u2029\ud800-\udfff"  # separators of lines and paragraphs, lone surrogates
    "\u202a-\u202e\u2066-\u2069]"  # embeddings, overrides and isolates of text direction
)


def escape_controls(text: str) -> str:
    r"""Escapes characters that act on a terminal or reorder its text, such as ESC: `\x1b`.

    Tabs and line feeds are kept.
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class UserError(Exception):
    """A user's mistake, in one line: what is wrong, where, and what would fix it.

    The shell prints it to stderr and exits with status 2; a notebook shows the line without
    the traceback, which lists only functions of this package.

    Args:
      message: the line; its control characters and line feeds are escaped.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(escape_controls(message).replace("\n", r"\n"))

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


@contextlib.contextmanager
def user_errors(
    place: str, advice: str = "", kinds: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Turns errors of these kinds in the block into a UserError that says where it is."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{place}: {error}{advice}") from error


def reason_of(error: BaseException) -> str:
    """First line of an exception's message, at most 1,000 characters; its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:1000] if lines else type(error).__name__


def install_hint(extra: str) -> str:
    """End of a message that an extra of pyproject.toml is missing: how to install it."""
    return f"`make setup EXTRAS={extra}` in the project's folder installs it"


class MissingSplitError(UserError):
    """A data set does not have a split, or its files are not configured."""


class BusyError(UserError):
    """Another process writes where this one would."""


class NoRoomError(UserError):
    """A device has less memory than a program needs."""


class DivergedError(UserError):
    """The loss of a run is not finite."""


class NonFiniteError(UserError):
    """Logits of a model are NaN or infinite."""

    def __init__(self, cause: str = "") -> None:
        super().__init__(f"the model's logits are NaN or infinite{cause}")


class Stopped(Exception):
    """SIGTERM stopped a run before its last step. Its state is saved; the same call resumes it."""

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows in place of a traceback."""
        return [str(self)]


class Interrupted(Stopped):
    """Ctrl-C, or the stop button of a notebook, stopped a run.

    Without a message: outside of the loop of steps, so that nothing new is saved.
    """

    def __init__(
        self,
        message: str = "interrupted; the same command continues from the last checkpoint, or "
        "starts again if there is none",
    ) -> None:
        super().__init__(message)
