"""Many processes, one job: how they exchange messages, agree, and stop together.

With a single process these functions exchange nothing. Messages between processes are JSON; arrays
travel within the compiled steps, and through process 0 where it alone keeps them (`passing`).
"""

import atexit
import contextlib
import contextvars
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from transformer_jax.errors import RESUMABLE, UserError

# FOLDED parallel.agreement: What all processes of a job must have alike, and how they are told
# where they do not.


Statement = Mapping[str, str]
"""What a process has, or is about to do: name -> a text that must be the same in all."""

type Prepare[Own] = Callable[[], tuple[Own, Statement]]
"""Makes something of this process's own, and what it states about it."""

_SHOWN = 3  # differences in one message


def reported[Own](prepare: Prepare[Own]) -> tuple[Any, dict[str, Any]]:
    """This process's own thing, and what the others hear: its statement, or its error."""
    try:
        own, statement = prepare()
    except UserError as error:
        return None, {"error": str(error)}
    return own, {"statement": dict(statement)}


def disagreement(reports: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong, for all to be told; empty if all processes have made the same statement.

    Args:
      reports: of each process, by its number, as `reported` makes them.
    """
    errors = {number: report["error"] for number, report in reports.items() if "error" in report}
    if len(errors) == len(reports) and len(set(errors.values())) == 1:
        return str(next(iter(errors.values())))
    problems = [f"process {number}: {error}" for number, error in errors.items()]
    first, *others = [n for n in sorted(reports) if n not in errors] or [0]
    for number in others:
        ours, theirs = reports[first]["statement"], reports[number]["statement"]
        for name in dict.fromkeys((*ours, *theirs)):
            here, there = theirs.get(name), ours.get(name)
            if here == there:
                continue
            one = f"{name} is {here}" if here is not None else f"it has no {name}"
            other = f"'s is {there}" if there is not None else " has none"
            problems.append(f"process {number}: {one}, process {first}{other}")
    if len(problems) > _SHOWN:
        problems[_SHOWN:] = [f"and {len(problems) - _SHOWN} differences more"]
    return "; ".join(problems)


_FAILED_EXCHANGE = re.compile("(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED): ")
"""How XLA's error begins where an array is read whose exchange has failed."""
_SECONDS_TO_TELL = 2
_SIGTERM_CAME = "RECEIVED_PREEMPTION_NOTICE"  # where JAX's handler notes it, for all processes
_SECONDS_TO_LOOK = 1.0
_alone = contextvars.ContextVar("alone", default=False)

logger = logging.getLogger(__name__)


class LostProcessError(Exception):
    """Another process of the job, which this one waited for, is lost."""


def lost_process(error: BaseException | None) -> LostProcessError | None:
    """What an error, or one that it came from, says of a lost process; None where it says nothing,
    or there is one process alone."""
    while error is not None and jax.process_count() > 1:
        if isinstance(error, LostProcessError):
            return error
        of_xla = isinstance(error, ValueError) and _FAILED_EXCHANGE.match(str(error))
        if of_xla or isinstance(error, jax.errors.JaxRuntimeError):
            return LostProcessError(str(error).splitlines()[0])
        error = error.__cause__ or error.__context__
    return None


def is_primary() -> bool:
    """Whether this is the process that writes files and metrics."""
    return jax.process_index() == 0


def count() -> int:
    """How many processes act together: those of the job; or 1, while one acts `alone`."""
    return 1 if _alone.get() else jax.process_count()


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """While the block runs, this thread exchanges nothing with other processes."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def from_primary(make: Callable[[], Any]) -> Any:
    """Runs `make` in process 0 `alone` and returns its value, which JSON must hold, in all.

    Raises:
      UserError: `make` raised it; in all processes.
    """
    if count() == 1:
        return make()
    answer = {}
    if is_primary():
        try:
            with single_process():
                answer = {"value": make()}
        except UserError as error:
            answer = {"error": str(error)}
    answer = _broadcast(answer)
    if "error" in answer:
        raise refusal(answer["error"])
    return answer["value"]


def in_agreement[Own](prepare: Prepare[Own]) -> tuple[Own, Statement]:
    """What `prepare` makes in this process, once all processes have stated the same about it.

    Raises:
      UserError: two statements differ, or `prepare` raised it in one; in all processes.
    """
    if count() == 1:
        return prepare()
    own, report = reported(prepare)
    if problem := disagreement(dict(enumerate(gather(report)))):
        raise refusal(problem)
    return own, report["statement"]


def refusal(problem: str) -> UserError:
    """The error that all processes raise. The first one does so last: the others listen to its
    service, and are aborted when that is gone."""
    if is_primary():
        time.sleep(_SECONDS_TO_TELL)
    return UserError(problem)


def gather(value: Any) -> list[Any]:
    """The values of all processes, in their order; JSON must hold them."""
    if count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(text)] = text
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def kv_set(name: str, value: Any) -> None:
    """Leaves a value, which JSON must hold, under a name that nothing else has: for whichever
    process asks for it, and from any thread, as no other process need take part."""
    _service().key_value_set(name, json.dumps(value))


def kv_get(name: str, seconds: float) -> Any:
    """What a process left under that name, or leaves there within so many seconds; else None."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return json.loads(_service().blocking_key_value_get(name, max(int(1e3 * seconds), 1)))
    return None


def kv_delete(name: str) -> None:
    """Deletes what was left under that name, and under all that begin with it and a slash."""
    _service().key_value_delete(name)


def _service() -> Any:
    """Of the process that all have met at; it keeps texts by name."""
    return distributed.global_state.client


def to_host(tree: Any) -> Any:
    """A tree of arrays as NumPy arrays, whole in every process, wherever their parts are."""

    def whole(x: Any) -> np.ndarray:
        local = not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated
        return np.asarray(x if local else multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(whole, tree)


@contextlib.contextmanager
def catch_sigterm() -> Iterator[Callable[[int], bool]]:
    """Yields a function from the number of a step to whether to stop after it: SIGTERM has come.

    A single process stops at the step that it is in. Many all stop at one step that none of them
    has passed, whichever got the signal (`jax.distributed` sees to it); call at every step.
    """
    if jax.process_count() > 1:
        _between_steps.set()
        try:
            yield _stops_at
        finally:
            _between_steps.clear()
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False  # signals reach the main thread alone
        return
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield lambda step: stop.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


_between_steps = threading.Event()
"""Whether steps follow each other, which see a SIGTERM."""
_stopping = threading.Event()
"""Whether one of them has seen it."""


def _stops_at(step: int) -> bool:
    if multihost_utils.reached_preemption_sync_point(step):
        _stopping.set()
    return _stopping.is_set()


def end_after_sigterm(seconds: float) -> None:
    """Sees to it that a SIGTERM ends this process. JAX's handler only notes it, for the next step:
    where none ends within so many seconds, or no step is to come, the process ends itself."""
    client, done = _service(), threading.Event()

    def came() -> bool:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # so far nobody noted one
            return bool(client.key_value_try_get(_SIGTERM_CAME))
        return False

    def watch() -> None:
        while not done.wait(_SECONDS_TO_LOOK):
            in_vain = came() and not (_between_steps.is_set() and _stopping.wait(seconds))
            if in_vain and not _stopping.is_set():  # asked last: the steps may just have ended
                logger.warning("ended by SIGTERM; the same command goes on from what is saved")
                if is_primary():  # the others still ask its service; without it JAX aborts them
                    time.sleep(3 * _SECONDS_TO_LOOK)
                leave(RESUMABLE)
            if _stopping.is_set():
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def end() -> None:  # a thread that Python kills within a call of C++ would abort the process
        done.set()
        thread.join()

    atexit.register(end)


def leave(status: int) -> NoReturn:
    """Ends this process at once; the usual exit would wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _broadcast(value: Any) -> Any:
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    return json.loads(bytes_of_primary(text if is_primary() else None, size).tobytes())


def bytes_of_primary(own: np.ndarray | None, size: int) -> np.ndarray:
    """So many bytes, uint8 [size], of process 0, in all; the others give None."""
    sent = np.zeros(size, np.uint8) if own is None else own
    return np.asarray(multihost_utils.broadcast_one_to_all(sent))


# FOLDED parallel.passing: Arrays of all processes, whole in process 0, and from there to all
# again: bit for bit.


def arrays_to_primary(tree: Any) -> Any:
    """A tree of arrays as NumPy arrays of its own, whole in process 0; in the others, of None."""

    def whole(leaf: Any) -> np.ndarray | None:
        found = to_host(leaf)  # one after another: the others need not hold all at once
        return found.copy() if is_primary() else None

    return jax.tree.map(whole, tree)


def arrays_from_primary(tree: Any, abstract: Any) -> Any:
    """The inverse of `to_primary`.

    Args:
      tree: of NumPy arrays, in process 0; the others give None.
      abstract: a tree of their shapes, with the shardings that they get.
    """

    def placed(like: Any, own: np.ndarray | None) -> jax.Array:
        nbytes = math.prod(like.shape) * like.dtype.itemsize
        sent = None if own is None else np.frombuffer(own.tobytes(), np.uint8)
        whole = bytes_of_primary(sent, nbytes).view(like.dtype).reshape(like.shape)
        return jax.make_array_from_callback(like.shape, like.sharding, whole.__getitem__)

    leaves, structure = jax.tree.leaves(abstract), jax.tree.structure(abstract)
    own = [None] * len(leaves) if tree is None else jax.tree.leaves(tree)
    return jax.tree.unflatten(structure, map(placed, leaves, own))
