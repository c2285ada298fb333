# SPDX-License-Identifier: Apache-2.0
"""Standard streams: lines that are read, written and counted, log lines, and interrupts.

The program alone uses it; notebooks keep Python's own.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sized
from io import BufferedIOBase
from itertools import batched
from types import FrameType
from typing import TextIO, cast

from transformer_jax.errors import UserError, escape_controls
from transformer_jax.summary import counted

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit status of a program that SIGINT ended."""

_PACKAGE = "transformer_jax"
# Orbax, Grain and Flax log through absl. asyncio reports each part of a failed save, which the save
# itself reports once.
_LEVELS = {_PACKAGE: logging.INFO, "absl": logging.ERROR, "asyncio": logging.CRITICAL}

_REPORTED_SECONDS = 5  # runs that take longer report lines a second

_was_interrupted = False
_interrupt_message = ""


def prepare_streams() -> None:
    """Makes reads and writes of the standard streams wait.

    Raises:
      UserError: stdout or stderr is closed. A file of the run would get its number.
    """
    if sys.stdout is None or sys.stderr is None:
        raise UserError("stdout or stderr is closed; open it, as by > FILE or 2> /dev/null")
    for descriptor in range(3):
        with contextlib.suppress(OSError):  # stdin is closed
            os.set_blocking(descriptor, True)  # a read would end, and lines of the input be lost


def binary_stdin() -> BufferedIOBase:
    """The byte stream of stdin; raises UserError if it is closed."""
    if sys.stdin is None:
        raise UserError("stdin is closed, where examples come from; open it, as by < FILE")
    return cast(BufferedIOBase, sys.stdin.buffer)  # typeshed has no read1 for it


def write(text: str) -> None:
    """Writes results to stdout at once, as UTF-8; bytes of file names that are not UTF-8 stay.

    On a terminal, control characters are escaped: a model may have learned to write them.
    """
    if sys.stdout.buffer.isatty():
        text = escape_controls(text)
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()  # with what a component has printed
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise
        raise UserError(f"cannot write to stdout: {error.strerror}") from error


def is_stdout_terminal() -> bool:
    """Returns True if a person reads the results, not a program."""
    return sys.stdout.isatty()


def print_message(message: str) -> None:
    """Prints lines to stderr, with control characters escaped; drops what cannot be written."""
    try:
        print(escape_controls(message), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Prints the traceback of an error to stderr."""
    print_message("".join(traceback.format_exception(error)).rstrip())


def _discard(stream: TextIO) -> None:
    """Sends the rest of a stream to /dev/null: a failing flush at exit would be reported."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def handle_interrupts() -> None:
    """Makes a first SIGINT raise KeyboardInterrupt, and a second one end the program at once.

    An ignored SIGINT (under `nohup`, or in a background job) stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _report_unraisable


def was_interrupted() -> bool:
    """Returns True if an interrupt was raised; later errors may be its consequence."""
    return _was_interrupted


def announce_interrupt(message: str) -> None:
    """Sets the line that an interrupt writes to stderr, however it ends the program."""
    global _interrupt_message
    _interrupt_message = message


def report_interrupt() -> int:
    """Writes the line of `announce_interrupt` once; returns the exit status."""
    global _interrupt_message
    if _interrupt_message:
        with contextlib.suppress(OSError):  # below sys.stderr, which may be writing a line
            os.write(2, f"{_interrupt_message}\n".encode())
        _interrupt_message = ""
    return INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _was_interrupted
    if _was_interrupted:
        os._exit(report_interrupt())
    _was_interrupted = True
    raise KeyboardInterrupt


def _report_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    # Nothing can catch an interrupt in a destructor, or in the callback of the garbage collector
    # that jax has: the program would continue.
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        os._exit(report_interrupt())
    # After a failed save, threads below Python report to an event loop that is closed.
    if not _was_interrupted and str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def log_to_stderr() -> None:
    """Logs this package from INFO, other libraries from WARNING, absl from ERROR.

    Must be called before jax is imported: jax reads the compiler's log level from the environment.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    handler = _StderrHandler()
    handler.addFilter(_is_shown)
    logging.getLogger().addHandler(handler)
    logging.getLogger(_PACKAGE).setLevel(logging.INFO)


def _is_shown(record: logging.LogRecord) -> bool:
    return record.levelno >= _LEVELS.get(record.name.partition(".")[0], logging.WARNING)


class _StderrHandler(logging.Handler):
    """Writes log lines to stderr, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        line = logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S").format(record)
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname.lower()}: {line}"
        with tqdm.external_write_mode(file=sys.stderr):
            print_message(line)


def one_line(text: str) -> str:
    r"""Puts an output on one line: line feed and return become `\n` and `\r`; all else stays."""
    return text.replace("\n", r"\n").replace("\r", r"\r")


def read_batches(stream: BufferedIOBase, *, most: int) -> Iterator[list[str]]:
    """Yields the lines of `stream` in batches of at most `most`, as soon as they arrive.

    A writer that waits for the answer to a line gets it; a file is read in full batches. Lines are
    those of `data.files.lines.line_content`, and the last one may lack its line end. Bytes that are
    not UTF-8 become U+FFFD, with a warning that names the line.

    Raises:
      UserError: the stream cannot be read.
    """
    number = 0
    for batch in _read_available(stream, most):
        yield [_decode(line, number + offset) for offset, line in enumerate(batch, 1)]
        number += len(batch)


def _read_available(stream: BufferedIOBase, most: int) -> Iterator[tuple[bytes, ...]]:
    parts: list[bytes] = []  # of a line whose end is not read yet
    try:
        while block := stream.read1(1 << 20):  # b"" at the end
            first, *others = block.split(b"\n")
            parts.append(first)
            if others:
                lines = [b"".join(parts), *others]
                parts = [lines.pop()]
                yield from batched((line + b"\n" for line in lines), most)
    except OSError as error:
        raise UserError(f"cannot read the input: {error.strerror}") from error
    rest = b"".join(parts)
    if rest:  # a last line without a line feed
        yield (rest,)


def _decode(line: bytes, number: int) -> str:
    from transformer_jax.data.files.lines import line_content

    line = line_content(line, is_first=number == 1)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = (
            "line %d of the input is not UTF-8 from byte %d on; bytes that cannot be read become "
            "U+FFFD"
        )
        logger.warning(message, number, error.start + 1)
        return line.decode("utf-8", errors="replace")


def answer_lines[Batch: Sized](
    batches: Iterable[Batch],
    answer: Callable[[int, Batch], None],
    participle: str,
    total: int | None = None,
) -> int:
    """Answers batches of lines one after the other; returns the number of lines.

    Counts them on stderr: a progress bar on a terminal, and lines a second at the end.

    Args:
      answer: gets the number of the first line of a batch, from 1 on, and the batch.
      participle: names the work in the last message, such as "predicted".
      total: number of lines, if known.
    """
    from tqdm import tqdm

    start = time.perf_counter()
    number = 0
    # disable=None: a bar only on a terminal. A disabled bar counts nothing.
    with tqdm(total=total, unit=" lines", disable=None, leave=False) as bar:
        for batch in batches:
            answer(number + 1, batch)
            number += len(batch)
            bar.update(len(batch))
    seconds = time.perf_counter() - start
    if seconds > _REPORTED_SECONDS:
        rate = number / seconds
        lines = counted(number, "line")
        logger.info("%s %s in %.1f s, %.1f a second", participle, lines, seconds, rate)
    return number
