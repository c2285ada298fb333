# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of fault campaigns as real processes, and judges each.

Each case has its own folder. Its commands run there at the same time, each in a new interpreter or,
a hundred times as fast, in a fork of this process, which has imported everything and started no
device. For every case:

- no command runs longer than `SECONDS` or is ended by a signal that nobody sent;
- stderr holds no traceback; with status 2 it holds exactly one line that begins with `error:`;
- the exit status is one of those that the case allows;
- everything in the case's `outside/` is unchanged (names, links, modes and contents).

    cases = (Case(f"epoch {n}", [Command(["train", ...])], prepare=copy_a_run) for n in range(9))
    sys.exit(report(run(cases, workdir), sys.stderr))
"""

import atexit
import collections
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import pkgutil
import resource
import runpy
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

SECONDS = 60
GIBIBYTES = 8  # of address space for each command
OUTPUT = 64 << 20  # bytes that a command may print
EITHER = frozenset({0, 2})
NATIVE = ("Fatal Python error", "terminate called", "Check failed:", "*** SIG")
"""Messages of crashes in C and C++."""


@dataclasses.dataclass(frozen=True)
class Command:
    """One command line of the program (`argv`: its words), with its environment.

    Attributes:
      stdin: bytes to read; None: a closed descriptor.
      closed: further descriptors (1, 2) to close, in a new interpreter.
      environ: variables to set, or to remove (None).
      limits: {resource.RLIMIT_...: most}.
      fresh: start a new interpreter instead of a fork.
      before: called in the child before the command, or before the new interpreter.
    """

    argv: Sequence[str]
    stdin: bytes | None = b""
    closed: tuple[int, ...] = ()
    environ: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    limits: Mapping[int, int] = dataclasses.field(default_factory=dict)
    fresh: bool = False
    before: Callable[[], object] = bool


@dataclasses.dataclass
class Ended:
    """End of a command. A status of -N: by signal N."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    hung: bool


@dataclasses.dataclass(frozen=True)
class Case:
    """A case: what to run, and requirements beyond those of every case.

    Attributes:
      name: describes the case in the report.
      commands: run at the same time.
      prepare: fills the case's folder (the working directory); what it puts in `outside/` must
        not change.
      allowed: exit statuses.
      check: (folder, end of each command) -> what is wrong.
      watch: (pid, seconds since the start, folder), called repeatedly while a command runs; may
        send signals.
    """

    name: str
    commands: Sequence[Command]
    prepare: Callable[[Path], object] = bool
    allowed: frozenset[int] = EITHER
    check: Callable[[Path, list[Ended]], list[str]] = lambda folder, ended: []
    watch: Callable[[int, float, Path], object] = lambda pid, seconds, folder: None


@dataclasses.dataclass
class Verdict:
    """Result of a case: what is wrong, and how its commands ended."""

    case: Case
    wrong: list[str]
    ended: list[Ended]


def run(cases: Iterable[Case], workdir: Path, jobs: int = 2) -> Iterator[Verdict]:
    """Runs the cases, `jobs` at a time, each in a new folder of `workdir` that is deleted if
    nothing is wrong. Yields verdicts in the order of the cases' ends."""
    workdir.mkdir(parents=True, exist_ok=True)
    import_everything()
    waiting, running = enumerate(cases), []
    while True:
        while len(running) < jobs and (following := next(waiting, None)):
            running.append(_Running(following[1], workdir.absolute() / f"case-{following[0]}"))
        if not running:
            return
        for one in list(running):
            if one.poll():
                running.remove(one)
                yield one.verdict()
        time.sleep(0.002)


def report(verdicts: Iterable[Verdict], progress: TextIO) -> int:
    """Prints one JSON object: number of cases by status, the slowest case, and the failed ones.
    Returns the exit status: 1 if any failed."""
    statuses: collections.Counter[str] = collections.Counter()
    bad, count, slowest, since = [], 0, 0.0, time.monotonic()
    for count, verdict in enumerate(verdicts, 1):
        statuses[" ".join(str(one.status) for one in verdict.ended)] += 1
        slowest = max([slowest, *(one.seconds for one in verdict.ended)])
        if verdict.wrong:
            told = [one.stderr[-600:] for one in verdict.ended]
            bad.append({"case": verdict.case.name, "wrong": verdict.wrong, "told": told})
            print(f"{verdict.case.name}: {verdict.wrong}", file=progress)
        if count % 50 == 0:
            print(f"{count} cases, {len(bad)} bad: {dict(statuses)}", file=progress, flush=True)
    kinds = collections.Counter(what.partition(":")[0] for one in bad for what in one["wrong"])
    seconds = {"slowest_s": round(slowest, 1), "all_s": round(time.monotonic() - since)}
    print(json.dumps({"cases": count, "statuses": statuses, **seconds, "wrong": kinds, "bad": bad}))
    return int(bool(bad))


def import_everything() -> None:
    """Imports the whole program, so that forks start fast; starts no device."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # as the command line does, before jax
    package = importlib.import_module("transformer_jax")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def snapshot(folder: Path) -> dict[str, tuple]:
    """Content of a folder: {name: (mode, size, digest of the content or target of the link)}."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        kind: object = None
        if stat.S_ISLNK(status.st_mode):
            kind = os.readlink(path)
        elif stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
            with path.open("rb") as file:
                kind = hashlib.file_digest(file, "sha256").hexdigest()
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        found[os.fsencode(path.relative_to(folder)).hex()] = (status.st_mode, size, kind)
    return found


class _Running:
    """A running case."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder = case, folder
        (folder / "outside").mkdir(parents=True)
        case.prepare(folder)
        self._outside = snapshot(folder / "outside")
        self._since = time.monotonic()
        self._pids = [self._start(place, command) for place, command in enumerate(case.commands)]
        self._ended: dict[int, Ended] = {}

    def _start(self, place: int, command: Command) -> int:
        streams = [self._folder / f"{place}.{name}" for name in ("in", "out", "err")]
        streams[0].write_bytes(command.stdin or b"")
        if pid := os.fork():
            return pid
        try:
            _become(command, self._folder, streams)
        finally:
            os._exit(99)  # the child must never return into the campaign

    def poll(self) -> bool:
        """Calls the case's watcher; returns True if all commands have ended."""
        seconds = time.monotonic() - self._since
        for place, pid in enumerate(self._pids):
            if place in self._ended:
                continue
            self._case.watch(pid, seconds, self._folder)
            done, status = os.waitpid(pid, os.WNOHANG)
            if hung := not done and seconds > SECONDS:
                _, status = _kill(pid), os.waitpid(pid, 0)[1]
            if done or hung:
                out, err = (self._printed(place, name) for name in ("out", "err"))
                status = os.waitstatus_to_exitcode(status)
                self._ended[place] = Ended(status, out, err, seconds, hung)
                _kill(pid)  # processes that it started and left
        return len(self._ended) == len(self._pids)

    def _printed(self, place: int, stream: str) -> str:
        with (self._folder / f"{place}.{stream}").open("rb") as file:
            return file.read(OUTPUT).decode(errors="backslashreplace")

    def verdict(self) -> Verdict:
        """Returns the verdict; deletes the folder if nothing is wrong."""
        ended = [self._ended[place] for place in range(len(self._pids))]
        wrong = [
            what
            for one, command in zip(ended, self._case.commands, strict=True)
            for what in _wrong(one, self._case.allowed, command.limits)
        ]
        if snapshot(self._folder / "outside") != self._outside:
            wrong.append("outside: changed")
        wrong += self._case.check(self._folder, ended)
        if not wrong:  # whatever permissions its folders have
            subprocess.run(["chmod", "-R", "u+rwx", "--", self._folder], stderr=subprocess.DEVNULL)
            shutil.rmtree(self._folder, ignore_errors=True)
        return Verdict(self._case, wrong, ended)


def _become(command: Command, folder: Path, streams: list[Path]) -> None:
    """Turns this forked child into the command; does not return."""
    os.setsid()
    for place, path in enumerate(streams):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if place else os.O_RDONLY
        os.dup2(os.open(path, flags), place)
    os.chdir(folder)
    for name, value in command.environ.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    resource.setrlimit(resource.RLIMIT_AS, (GIBIBYTES << 30, GIBIBYTES << 30))
    command.before()
    for kind, most in command.limits.items():
        resource.setrlimit(kind, (most, most))
    closed = {*command.closed, *([0] if command.stdin is None else [])}
    for descriptor in closed:
        os.close(descriptor)
    if command.fresh or closed:
        words = [sys.executable, "-m", "transformer_jax", *command.argv]
        os.execve(sys.executable, words, os.environ)
    _leave(_forked(command.argv))


def _forked(argv: Sequence[str]) -> int:
    """Runs the program in this process; returns its exit status."""
    sys.argv = ["transformer_jax", *argv]
    try:
        runpy.run_module("transformer_jax", run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def _leave(status: int) -> None:
    """Exits like an interpreter: runs exit functions and flushes buffers."""
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120  # as the interpreter does
    os._exit(status)


def _kill(pid: int) -> None:
    """Kills a command and all processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _wrong(ended: Ended, allowed: frozenset[int], limits: Mapping[int, int]) -> list[str]:
    """Violations of the rules for every command."""
    wrong = ["hang: killed"] if ended.hung else []
    if not ended.hung and ended.status not in allowed:
        wrong.append(f"status: {ended.status}, allowed {sorted(allowed)}")
    if "Traceback (most recent call last)" in ended.stderr:
        wrong.append("traceback")
    wrong += [f"native: {words}" for words in NATIVE if words in ended.stderr]
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    full = len(ended.stderr) >= limits.get(resource.RLIMIT_FSIZE, sys.maxsize)  # stderr is a file
    if ended.status == 2 and len(errors) != 1 and ended.stderr and not full:
        wrong.append(f"told: {len(errors)} lines of error")
    return wrong
