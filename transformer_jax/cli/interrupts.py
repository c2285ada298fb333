"""Ctrl-C ends the program, wherever it finds it; notebooks keep Python's own interrupts.

Python raises KeyboardInterrupt in whatever the main thread is doing. In a destructor or a callback
of the garbage collector (jax has one, which runs often) nobody can catch it: Python reports it to
`sys.unraisablehook`, and the program would run on. It is raised once more from there.
"""

import os
import signal
import sys
from types import FrameType

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
    sys.unraisablehook = unraisable


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


def unraisable(lost: "sys.UnraisableHookArgs") -> None:
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
