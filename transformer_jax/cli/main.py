"""From a command line to an exit status."""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from transformer_jax.cli import inspecting, terminal, verbs
from transformer_jax.cli.parser import parse
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.errors import RESUMABLE, Stopped, UserError
from transformer_jax.runtime.startup import (
    check_environment,
    keep_freed_memory,
    skip_plugins_without_devices,
)

logger = logging.getLogger(__name__)

USER_ERROR = 2
BROKEN_PIPE = 141

_ELSEWHERE = {
    "chat": verbs.chat,
    "plan": verbs.plan,
    "inspect": inspecting.inspect,
    "import": verbs.import_published,
    "export": verbs.export,
}
"""What verbs do that `verbs` has not."""
_LONGEST = 1000  # characters of a message


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb: 0 once what it asks for is done, or 2 and one line on stderr where the user
    got something wrong.

    A run that SIGTERM stopped is saved, and the same command goes on (75). An interrupt (130) and a
    reader that went away (141), such as `head`, are quiet.
    """
    terminal.open_standard()
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        terminal.require_stdout()
        log_to_stderr()
        keep_freed_memory()
        skip_plugins_without_devices()
        check_environment()
    except (UserError, OSError) as error:
        return _status_of(error)
    return _run_one_of_many(args) if getattr(args, "distributed", False) else _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        run_verb = _ELSEWHERE.get(args.verb) or getattr(verbs, args.verb)
        run_verb(args)
        terminal.flush()
    except KeyboardInterrupt:
        return terminal.INTERRUPTED
    except Exception as error:
        if terminal.came():  # in the middle of compiled code, which made another error of it
            return terminal.INTERRUPTED
        return _status_of(error)
    return 0


def _status_of(error: Exception) -> int:
    """The exit status that an error has, once it is told; raises it where it is the program's."""
    match error:
        case Stopped():
            logger.info("%s", error)
            return RESUMABLE
        case UserError():
            return _fail(str(error))
        case BrokenPipeError():
            return BROKEN_PIPE
        case FileNotFoundError() if error.filename is None:  # of os.getcwd alone
            return _fail("the current folder is gone; go to another one")
        case OSError() if error.errno is not None:  # the system's: rights, room, a failing disk
            where = "" if error.filename is None else f"{error.filename}: "
            return _fail(f"{where}{error.strerror}")
        case MemoryError():
            return _fail(f"out of memory: {error}")
        case RuntimeError() if str(error).startswith("RESOURCE_EXHAUSTED"):  # XLA's
            return _fail(f"out of memory: {error}")
    raise error


def _run_one_of_many(args: argparse.Namespace) -> int:
    """As `_run`; a process that fails exits at once, so that the others do not wait for it."""
    from transformer_jax.parallel import hosts

    _keep_stdout_for_results()
    try:
        status = _run(args)
    except Exception as error:
        if lost := hosts.lost_process(error):
            _fail(
                f"lost another process ({lost}); start the job again: its last checkpoint is there"
            )
            hosts.leave(RESUMABLE)
        traceback.print_exc()
        hosts.leave(1)
    if status not in (0, RESUMABLE):  # these all processes have, and end together
        hosts.leave(status)
    return status


def _keep_stdout_for_results() -> None:
    """Sends what C++ libraries print (Gloo, on connecting) to stderr instead."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = results


def _fail(message: str) -> int:
    line = " ".join(message.splitlines())
    if len(line) > _LONGEST:  # some value in it is
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    terminal.tell(f"error: {line}")
    return USER_ERROR
