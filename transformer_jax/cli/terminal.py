# SPDX-License-Identifier: Apache-2.0
"""Standard streams, log lines and interrupts of the program.

Ctrl-C ends the program whatever it is doing; notebooks keep Python's own interrupts. Python raises
KeyboardInterrupt in the code that the main thread is running. In a destructor or in a callback of
the garbage collector (jax has one, which runs often) nothing can catch it: Python reports it to
`sys.unraisablehook`, and the program would continue. The hook here raises it again.
"""

import contextlib
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from io import BufferedIOBase
from types import FrameType
from typing import TextIO, cast

from transformer_jax.errors import UserError, escape_controls

INTERRUPTED = 130
"""Exit status of a program that SIGINT ended."""

_PACKAGE = "transformer_jax"
_RAISE_AGAIN_SECONDS = 0.01  # time for the destructor or callback that lost an interrupt to end

_was_interrupted = False
_interrupt_bytes: int | None = None
"""Descriptor from which a byte can be read after each signal, once interrupts are handled."""


def open_standard_streams() -> None:
    """Opens /dev/null in place of stdin, stdout and stderr if they are closed.

    Otherwise a file of the run would get their descriptor, and libraries would print into it.
    `binary_stdin` and `require_stdout` report a closed stream to a verb that needs it; messages to
    a closed stderr are dropped.
    """
    for descriptor in range(3):
        try:
            # With a stream that does not block, reads would end and writes fail instead of waiting.
            os.set_blocking(descriptor, True)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def require_stdout() -> None:
    """Raises UserError if stdout is closed."""
    if sys.stdout is None:
        raise UserError("stdout is closed, where results go; open it, as by > FILE")


class Stdin:
    """Byte stream of stdin, whose reads an interrupt ends.

    Python runs signal handlers between instructions. An interrupt that comes after the last one and
    before the system call would wait as long as the read does. So reads wait for input or for the
    byte that Python writes at once when a signal comes.
    """

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream

    def read1(self, size: int) -> bytes:
        """Reads at most `size` bytes, as soon as there are any."""
        while _interrupt_bytes is not None:
            descriptor = self._stream.fileno()
            ready, _, _ = select.select([descriptor, _interrupt_bytes], [], [])
            if descriptor in ready:
                break
            os.read(_interrupt_bytes, 1024)  # the handler runs after this instruction
        return self._stream.read1(size)

    def isatty(self) -> bool:
        """Returns True if a person types the input."""
        return self._stream.isatty()


def binary_stdin() -> Stdin:
    """The byte stream of stdin; raises UserError if it is closed."""
    if sys.stdin is None:
        raise UserError("stdin is closed, where examples come from; open it, as by < FILE")
    return Stdin(cast(BufferedIOBase, sys.stdin.buffer))  # typeshed has no read1 for it


def write(text: str) -> None:
    """Writes results to stdout as UTF-8; bytes of file names that are not UTF-8 stay.

    On a terminal, control characters are escaped: a model may have learned to write them.
    """
    if sys.stdout.buffer.isatty():
        text = escape_controls(text)
    with _stdout_errors():
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def is_stdout_terminal() -> bool:
    """Returns True if a person reads the results, not a program."""
    return sys.stdout.isatty()


def flush() -> None:
    """Flushes stdout."""
    with _stdout_errors():
        sys.stdout.flush()


def print_message(message: str) -> None:
    """Prints lines to stderr, with control characters escaped.

    Drops them and all later ones if stderr cannot be written.
    """
    try:
        print(escape_controls(message), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Prints the traceback of an error to stderr."""
    print_message("".join(traceback.format_exception(error)).rstrip())


def report_uncaught_errors() -> None:
    """Makes Python report an uncaught error by `print_traceback`."""
    sys.excepthook = lambda kind, error, trace: print_traceback(error)


def _discard(stream: TextIO) -> None:
    """Sends the rest of a stream to /dev/null: a failing flush at exit would be reported."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"cannot write to stdout: {error.strerror}") from error


def handle_interrupts() -> None:
    """Makes a first SIGINT raise KeyboardInterrupt, and a second one end the program at once.

    An ignored SIGINT (under `nohup`, or in a background job) stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    global _interrupt_bytes
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)
    _interrupt_bytes, write_end = os.pipe()
    os.set_blocking(write_end, False)  # as set_wakeup_fd requires
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    sys.unraisablehook = _report_unraisable


def was_interrupted() -> bool:
    """Returns True if an interrupt was raised; later errors may be its consequence."""
    return _was_interrupted


def exit_silently_if_interrupted() -> None:
    """Makes the next interrupt end the program without a message: its work is done."""
    global _was_interrupted
    _was_interrupted = True


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _was_interrupted
    if _was_interrupted:
        os._exit(INTERRUPTED)
    _was_interrupted = True
    raise KeyboardInterrupt


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """The `sys.unraisablehook` of the program.

    Raises a lost interrupt again, a moment later. Reports any other error, unless an interrupt came
    before it.
    """
    global _was_interrupted
    handled = signal.getsignal(signal.SIGALRM) is _interrupt
    if handled and isinstance(unraisable.exc_value, KeyboardInterrupt):
        _was_interrupted = False
        signal.setitimer(signal.ITIMER_REAL, _RAISE_AGAIN_SECONDS)
    elif not _was_interrupted:
        sys.__unraisablehook__(unraisable)


def log_to_stderr() -> None:
    """Logs this package from INFO, other libraries from WARNING, absl from ERROR.

    Must be called before jax is imported: jax reads the compiler's log level from the environment.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    handler = _StderrHandler()
    handler.addFilter(_is_shown)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    logging.getLogger(_PACKAGE).setLevel(logging.INFO)
    sys.unraisablehook = _report_unless_save_failed


def _report_unless_save_failed(unraisable: "sys.UnraisableHookArgs") -> None:
    """Reports an unraisable error, except those that a failed save causes.

    Threads below Python then report to an event loop that is closed.
    """
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        _report_unraisable(unraisable)


def _is_shown(record: logging.LogRecord) -> bool:
    library = record.name.partition(".")[0]
    # Orbax, Grain and Flax log through absl. asyncio reports each part of a failed save, which the
    # save itself reports once.
    levels = {_PACKAGE: logging.INFO, "absl": logging.ERROR, "asyncio": logging.CRITICAL}
    return record.levelno >= levels.get(library, logging.WARNING)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


class _StderrHandler(logging.Handler):
    """Writes log lines to stderr, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            print_message(self.format(record))
