# SPDX-License-Identifier: Apache-2.0
"""Processes of one job: who writes, how they agree, exchange values and arrays, and stop together.

With a single process these functions exchange nothing. Values travel as JSON, arrays as bytes.
"""

import atexit
import contextlib
import contextvars
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from transformer_jax.errors import RESUMABLE, UserError, reason_of

Fingerprint = Mapping[str, str]
"""Name -> text that must be equal in all processes, such as a setting or a digest."""

type Prepare[Own] = Callable[[], tuple[Own, Fingerprint]]
"""Makes an object for this process, and the fingerprint that all processes must share."""

_SHOWN_DIFFERENCES = 3
_SECONDS_TO_REPORT = 2
_SIGTERM_KEY = "RECEIVED_PREEMPTION_NOTICE"  # set by JAX's handler, for all processes
_POLL_SECONDS = 1.0

_is_single = contextvars.ContextVar("is_single", default=False)

logger = logging.getLogger(__name__)


def is_primary() -> bool:
    """Returns True in process 0, which writes files and metrics."""
    return jax.process_index() == 0


def num_processes() -> int:
    """Processes of the job; 1 inside `single_process`."""
    return 1 if _is_single.get() else jax.process_count()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Context for a thread that exchanges nothing with other processes."""
    before = _is_single.set(True)
    try:
        yield
    finally:
        _is_single.reset(before)


def require_agreement[Own](prepare: Prepare[Own]) -> Own:
    """Runs `prepare` in every process and compares the fingerprints; returns the object of this
    process.

    Raises:
      UserError: two fingerprints differ, or `prepare` raised it in a process. All processes raise
        it.
    """
    if num_processes() == 1:
        return prepare()[0]
    made, report = make_report(prepare)
    problem = find_disagreement(dict(enumerate(gather(report))))
    if problem:
        raise error_for_all(problem)
    return made


def make_report(prepare: Prepare[Any]) -> tuple[Any, dict[str, Any]]:
    """Runs `prepare`. Returns its object, and a report for the other processes: the fingerprint or
    the error."""
    try:
        made, fingerprint = prepare()
    except UserError as error:
        return None, {"error": str(error)}
    return made, {"fingerprint": dict(fingerprint)}


def find_disagreement(reports: Mapping[int, Mapping[str, Any]]) -> str:
    """Describes how processes differ, from their reports (`make_report`) by number; empty if all
    fingerprints are equal."""
    errors = {number: report["error"] for number, report in reports.items() if "error" in report}
    messages = set(errors.values())
    if len(errors) == len(reports) and len(messages) == 1:
        return str(messages.pop())  # all processes made the same mistake
    problems = [f"process {number}: {error}" for number, error in errors.items()]
    first, *others = [n for n in sorted(reports) if n not in errors] or [0]
    for number in others:
        reference = reports[first]["fingerprint"]
        other = reports[number]["fingerprint"]
        for name in dict.fromkeys((*reference, *other)):
            if other.get(name) == reference.get(name):
                continue
            here = f"{name} is {other[name]}" if name in other else f"it has no {name}"
            there = f"'s is {reference[name]}" if name in reference else " has none"
            problems.append(f"process {number}: {here}, process {first}{there}")
    if len(problems) > _SHOWN_DIFFERENCES:
        more = len(problems) - _SHOWN_DIFFERENCES
        problems[_SHOWN_DIFFERENCES:] = [f"and {more} more differences"]
    return "; ".join(problems)


def error_for_all(problem: str) -> UserError:
    """Error that all processes raise together.

    Process 0 waits first: the others use its coordination service, and are aborted when it ends.
    """
    if is_primary():
        time.sleep(_SECONDS_TO_REPORT)
    return UserError(problem)


class LostProcessError(Exception):
    """Another process of the job is lost."""


_FAILED_TRANSFER = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED): ")
"""Beginning of XLA's error when an array is read whose transfer between processes failed."""


def lost_process(error: BaseException | None) -> LostProcessError | None:
    """Finds a lost process in an error or its causes; None if there is none, or the job has one
    process."""
    while error is not None and jax.process_count() > 1:
        if isinstance(error, LostProcessError):
            return error
        from_xla = isinstance(error, ValueError) and _FAILED_TRANSFER.match(str(error))
        if from_xla or isinstance(error, jax.errors.JaxRuntimeError):
            return LostProcessError(reason_of(error))
        error = error.__cause__ or error.__context__
    return None


def run_on_primary(make: Callable[[], Any]) -> Any:
    """Runs `make` in process 0, as a `single_process`; all processes return its value (JSON).

    Raises:
      UserError: `make` raised it. All processes raise it.
    """
    if num_processes() == 1:
        return make()
    answer = {}
    if is_primary():
        try:
            with single_process():
                answer = {"value": make()}
        except UserError as error:
            answer = {"error": str(error)}
    answer = gather(answer)[0]
    if "error" in answer:
        raise error_for_all(answer["error"])
    return answer["value"]


def gather(value: Any) -> list[Any]:
    """Values (JSON) of all processes, ordered by process."""
    if num_processes() == 1:
        return [value]
    # Arrays of all processes must have one shape, so texts are padded to the longest.
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(text)] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def to_host(tree: Any) -> Any:
    """Copies a tree of arrays, sharded or not, to NumPy arrays, complete in every process."""

    def whole(x: Any) -> np.ndarray:
        local = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return np.asarray(x if local else multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(whole, tree)


def arrays_to_primary(tree: Any) -> Any:
    """Copies a tree of arrays, bit for bit, to NumPy arrays in process 0; the other processes get a
    tree of None."""

    def whole(leaf: Any) -> np.ndarray | None:
        array = to_host(leaf)  # leaf by leaf, so that the others never hold all at once
        return array.copy() if is_primary() else None

    return jax.tree.map(whole, tree)


def arrays_from_primary(tree: Any, abstract: Any) -> Any:
    """Inverse of `arrays_to_primary`.

    Args:
      tree: NumPy arrays in process 0; None in the others.
      abstract: tree of the arrays' shapes, with their shardings.
    """

    def placed(like: Any, array: np.ndarray | None) -> jax.Array:
        sent = np.zeros(like.shape, like.dtype) if array is None else array
        received = multihost_utils.broadcast_one_to_all(sent.reshape(-1).view(np.uint8))
        whole = np.asarray(received).view(like.dtype).reshape(like.shape)
        return jax.make_array_from_callback(like.shape, like.sharding, whole.__getitem__)

    leaves, structure = jax.tree.flatten(abstract)
    arrays = [None] * len(leaves) if tree is None else jax.tree.leaves(tree)
    return jax.tree.unflatten(structure, map(placed, leaves, arrays))


INTERRUPT = "an interrupt"

_in_training = threading.Event()
"""Set while steps follow each other, each of which checks for a SIGTERM."""
_stopping = threading.Event()
"""Set when a step has seen a SIGTERM."""


class Stops:
    """Requests to stop training: a SIGTERM, or an interrupt (Ctrl-C, a notebook's stop button).

    Attributes:
      cause: what asked first, in words; None: nothing did.
    """

    cause: str | None = None
    _at_once = False

    def after(self, step: int) -> bool:
        """Returns True if training stops after this step. Ask at every step."""
        return self.cause is not None

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """In the block an interrupt raises KeyboardInterrupt."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Receives the signals during the block; a second interrupt is handled as before it."""
        on_interrupt = signal.getsignal(signal.SIGINT)

        def terminate(*_: Any) -> None:
            self.cause = "SIGTERM"

        def interrupt(number: int, frame: FrameType | None) -> None:
            was_asked = self.cause is not None
            self.cause = self.cause or INTERRUPT
            if was_asked and callable(on_interrupt):
                on_interrupt(number, frame)
            if self._at_once:
                raise KeyboardInterrupt
            with contextlib.suppress(RuntimeError):  # the signal came while a line was written
                logger.info("stopping after this step, which is saved; once more stops at once")

        on_terminate = signal.signal(signal.SIGTERM, terminate)
        if on_interrupt != signal.SIG_IGN:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, on_terminate)
            signal.signal(signal.SIGINT, on_interrupt)


class _JobStops(Stops):
    """Stops of many processes: all after the same step, whichever received the SIGTERM;
    `jax.distributed` chooses one that none has passed."""

    def after(self, step: int) -> bool:
        if multihost_utils.reached_preemption_sync_point(step):
            self.cause = "SIGTERM"
            _stopping.set()
        return _stopping.is_set()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        _in_training.set()
        try:
            yield
        finally:
            _in_training.clear()


@contextlib.contextmanager
def catch_stops() -> Iterator[Stops]:
    """Yields the requests to stop that come during the block."""
    stops = _JobStops() if jax.process_count() > 1 else Stops()
    # Only the main thread receives signals.
    is_main = threading.current_thread() is threading.main_thread()
    with stops.caught() if is_main or jax.process_count() > 1 else contextlib.nullcontext():
        yield stops


def exit_after_sigterm(seconds: float) -> None:
    """Makes sure that a SIGTERM ends this process of a job.

    JAX's handler only records the signal for the next step. A thread ends the process if no step
    sees the signal within `seconds`, or outside of training.
    """
    client: Any = distributed.global_state.client  # of the coordination service of process 0
    done = threading.Event()

    def was_received() -> bool:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the key does not exist yet
            return bool(client.key_value_try_get(_SIGTERM_KEY))
        return False

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            in_vain = was_received() and not (_in_training.is_set() and _stopping.wait(seconds))
            if in_vain and not _stopping.is_set():  # checked last: the steps may just have ended
                logger.warning("ended by SIGTERM; the same command continues from what is saved")
                if is_primary():  # the others still ask its service; without it JAX aborts them
                    time.sleep(3 * _POLL_SECONDS)
                exit_now(RESUMABLE)
            if _stopping.is_set():
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def end() -> None:  # a thread that Python kills within a call of C++ would abort the process
        done.set()
        thread.join()

    atexit.register(end)


def exit_now(status: int) -> NoReturn:
    """Ends this process without waiting for the other processes, as the usual exit would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
