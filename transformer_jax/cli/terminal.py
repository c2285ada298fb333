"""stdin, stdout and stderr, which a user may have closed, filled or left behind."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from io import BufferedIOBase
from types import FrameType
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


# FOLDED cli.interrupts: Ctrl-C ends the program, wherever it finds it; notebooks keep Python's own
# interrupts. Python raises KeyboardInterrupt in whatever the main thread is doing. In a destructor
# or a callback of the garbage collector (jax has one, which runs often) nobody can catch it:
# Python reports it to `sys.unraisablehook`, and the program would run on. It is raised once more
# from there.


INTERRUPTED = 130
"""Exit status, as of a program that SIGINT ended."""

_SOON = 0.01  # seconds

_came = False


def install() -> None:
    """Makes SIGINT raise KeyboardInterrupt once, and end the program at once when it comes again.

    Where SIGINT is ignored (as under `nohup` or in a background job) it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)
    sys.unraisablehook = report_unraisable


def came() -> bool:
    """Whether an interrupt was raised: any error that follows may be what became of it."""
    return _came


def end_at_once() -> None:
    """From here on an interrupt ends the program without a word: its work is done."""
    global _came
    _came = True


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _came
    if _came:
        os._exit(INTERRUPTED)
    _came = True
    raise KeyboardInterrupt


def report_unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """The `sys.unraisablehook` of the program.

    A lost interrupt is raised again, soon and outside of what lost it. Any other error is reported,
    unless an interrupt came before.
    """
    global _came
    installed = signal.getsignal(signal.SIGALRM) is _interrupt
    if installed and isinstance(lost.exc_value, KeyboardInterrupt):
        _came = False
        signal.setitimer(signal.ITIMER_REAL, _SOON)
    elif not _came:
        sys.__unraisablehook__(lost)


# FOLDED cli.messages: Log lines on stderr, without the chatter of libraries.


PACKAGE = "transformer_jax"


def log_to_stderr() -> None:
    """This package's messages from INFO, other libraries' from WARNING, absl's from ERROR.

    Call it before jax is imported, which reads the compiler's log level from the environment.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    handler = _StderrHandler()
    handler.addFilter(_worth_showing)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)
    sys.unraisablehook = _tell_unless_left_over


def _tell_unless_left_over(unraisable: "sys.UnraisableHookArgs") -> None:
    """Passes on what `sys.unraisablehook` gets, but for the remains of a failed save: its threads
    below Python report to an event loop that is gone."""
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        report_unraisable(unraisable)


def _worth_showing(record: logging.LogRecord) -> bool:
    library = record.name.partition(".")[0]
    # Orbax, Grain and Flax log through absl. asyncio reports each part of a failed save, which the
    # save itself reports once.
    quiet = {PACKAGE: logging.INFO, "absl": logging.ERROR, "asyncio": logging.CRITICAL}
    return record.levelno >= quiet.get(library, logging.WARNING)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


class _StderrHandler(logging.Handler):
    """Writes above the progress bar, where one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            tell(self.format(record))
