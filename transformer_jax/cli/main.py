# SPDX-License-Identifier: Apache-2.0
"""Runs a command line and returns its exit status."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from transformer_jax.cli import terminal
from transformer_jax.cli.flags import VERBS
from transformer_jax.cli.parser import complete_if_asked, parse
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.errors import RESUMABLE, Interrupted, Stopped, UserError
from transformer_jax.runtime import startup

logger = logging.getLogger(__name__)

USER_ERROR = 2
BROKEN_PIPE = 141

_RESUMED = ("train", "sweep")
"""Verbs that the same command continues after an interrupt."""

_MAX_MESSAGE = 1000  # characters


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit status.

    0: done. 1: `verify` or `audit` found a difference. 2: a user error, with one line on stderr.
    75: stopped by SIGTERM and saved; the same command resumes. 130: interrupted; training is saved
    first. 141: the reader of stdout has gone (such as `head`).
    """
    complete_if_asked()
    args = argparse.Namespace(traceback=False)
    try:
        terminal.prepare_streams()
        args = parse(sys.argv[1:] if argv is None else argv)
        log_to_stderr()
        startup.collect_garbage_rarely()
        startup.protect_child_paths()
        startup.keep_freed_memory()
        startup.skip_plugins_without_devices()
        startup.check_environment()
    except (UserError, OSError) as error:
        return _exit_status(error, args.traceback)
    return _run_in_job(args) if getattr(args, "distributed", False) else _run(args)


def _run(args: argparse.Namespace) -> int:
    terminal.announce_interrupt(str(Interrupted()) if args.verb in _RESUMED else "")
    try:
        status = VERBS[args.verb].run(args)
        terminal.write("")  # also what a component has printed: Python would fail at exit
        return status or 0
    except KeyboardInterrupt:
        return terminal.report_interrupt()
    except Exception as error:
        # Compiled code turns an interrupt into another error.
        if terminal.was_interrupted() and not isinstance(error, Stopped):
            return terminal.report_interrupt()
        return _exit_status(error, args.traceback)


def _exit_status(error: Exception, with_traceback: bool) -> int:
    """Reports an error and returns its exit status; raises it again if it is a bug."""
    if with_traceback and not isinstance(error, Stopped | BrokenPipeError):
        terminal.print_traceback(error)
    match error:
        case Stopped():
            logger.info("%s", error)
            return terminal.INTERRUPTED if isinstance(error, Interrupted) else RESUMABLE
        case UserError():
            return _fail(str(error))
        case BrokenPipeError():
            return BROKEN_PIPE
        case OSError() if error.errno is not None:  # from the system: rights, full or failing disk
            prefix = "" if error.filename is None else f"{error.filename}: "
            return _fail(f"{prefix}{error.strerror}")
    # The second is XLA's.
    if isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):
        return _fail(f"out of memory: {error}")
    from transformer_jax.runs.user_modules import describe_module_error
    from transformer_jax.runtime.platform import require_device

    line = describe_module_error(error)
    if line:
        return _fail(f"{line} (--traceback shows how it got there)")
    try:
        require_device()
    except UserError as refusal:
        return _fail(str(refusal))
    raise error


def _run_in_job(args: argparse.Namespace) -> int:
    """Runs a verb in one process of a job.

    A process that fails exits at once, so that the others do not wait for it.
    """
    from transformer_jax.parallel import hosts

    _keep_stdout_for_results()
    try:
        status = _run(args)
    except Exception as error:
        lost = hosts.lost_process(error)
        if lost:
            _fail(
                f"lost another process ({lost}); start the job again: its last checkpoint is there"
            )
            hosts.exit_now(RESUMABLE)
        terminal.print_traceback(error)
        hosts.exit_now(1)
    if status not in (0, RESUMABLE):  # with these two, all processes end together
        hosts.exit_now(status)
    return status


def _keep_stdout_for_results() -> None:
    """Sends the output of C++ libraries (Gloo prints when it connects) to stderr."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = results


def _fail(message: str) -> int:
    """Prints an error on one line, without its middle if it quotes a very long value."""
    line = " ".join(message.splitlines())
    if len(line) > _MAX_MESSAGE:
        line = f"{line[: _MAX_MESSAGE // 2]} ... {line[-_MAX_MESSAGE // 2 :]}"
    terminal.print_message(f"error: {line}")
    return USER_ERROR
