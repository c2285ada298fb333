# SPDX-License-Identifier: Apache-2.0
"""Work on proposals, each in a process of its own: check, train, evaluate.

A proposal's code runs here and not in the process that keeps the ledger. A process that ends early,
takes too long or writes too much is a `JobError`, whose rule the ledger names.
"""

import contextlib
import dataclasses
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from transformer_jax.errors import BusyError, Interrupted, NonFiniteError, Stopped, UserError
from transformer_jax.lab.child_process import child_process, describe_end, end_with_parent
from transformer_jax.lab.evidence.comparison import run_digests
from transformer_jax.lab.evidence.fingerprints import row_fingerprints
from transformer_jax.lab.evidence.verdicts import digest_of
from transformer_jax.lab.night.definition import rule_of
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.results import seed_folders
from transformer_jax.lab.sweeps.row_training import RowSpec, check_row, row_data, train_rows
from transformer_jax.lab.verification.verify import verify
from transformer_jax.logs.records import to_json
from transformer_jax.parallel import hosts
from transformer_jax.runs.config import chosen_fields, resolve_file
from transformer_jax.runs.load import load
from transformer_jax.runs.provenance import TEST_DATA, VALIDATION_DATA, data_digests
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import describe_error
from transformer_jax.runtime.files import entries_below, write_atomic

_ROW = "row"
_POLL_SECONDS = 0.5
_SECONDS_TO_SAVE = 60  # a checkpoint, after SIGTERM
_GUARDED = ("open", "os.remove", "os.rename", "subprocess.Popen", "os.system", "socket.connect")
"""Audit events that a proposal's own code may not raise."""


class JobError(UserError):
    """A job failed; the rule and the reason for which its proposal is refused."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule
        self.spent: Mapping[str, float] = {"runs": 0, "seconds": 0.0}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a job: seconds, and gigabytes below a folder."""

    seconds: float
    gigabytes: float
    folder: Path


def run_job(kind: str, limits: Limits, **arguments: Any) -> dict[str, Any]:
    """Runs a function of `JOBS` in another process; returns what it returns.

    Raises:
      JobError: it failed, or exceeded its limits.
      UserError: another process, of a night that was just killed, still trains there.
      Stopped: a SIGTERM or an interrupt came; what it trained is saved.
    """
    limits.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=limits.folder) as scratch:
        answer = Path(scratch) / "answer.json"
        work = json.dumps({"kind": kind, "arguments": arguments, "answer": str(answer)})
        line = f"{work}\n".encode()
        with hosts.catch_stops() as stops, child_process(__name__, line, scratch) as process:
            _wait(process, limits, stops)
        if not answer.exists():
            raise JobError("crash", describe_end(process, scratch))
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "busy" in result:
        raise UserError(f"night: {result['busy']}")
    if "rule" in result:
        raise JobError(result["rule"], result["reason"])
    return result


def _wait(process: subprocess.Popen[bytes], limits: Limits, stops: hosts.Stops) -> None:
    """Waits for the end of a process within its limits."""
    start = time.monotonic()
    before = _bytes_below(limits.folder)
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        if stops.cause:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_SAVE)
            kind = Interrupted if stops.cause == hosts.INTERRUPT else Stopped
            raise kind(f"stopped by {stops.cause}; the same command continues the night")
        if time.monotonic() > start + limits.seconds:
            raise JobError("time", f"it had not ended after {limits.seconds:.0f} s")
        if _bytes_below(limits.folder) > before + limits.gigabytes * 1e9:
            raise JobError("disk", f"it wrote more than {limits.gigabytes:g} GB")


def _bytes_below(folder: Path) -> int:
    total = 0
    for entry in entries_below(folder):
        with contextlib.suppress(OSError):  # a temporary file that is gone
            total += entry.stat(follow_symlinks=False).st_size
    return total


def check(
    config: str, metric: str, modules: Sequence[str], overrides: Mapping[str, Any], verifies: bool
) -> dict[str, Any]:
    """Checks that a row can train; "failing" are the quick oracles, run with `verifies`, that
    differ or could not be run."""
    settings = resolve_file(config, overrides, modules)
    check_row(Sweep(config, {_ROW: {}}, metrics=[metric]), _ROW, settings)
    if not verifies:
        return {"failing": []}
    verification = verify(settings, modules, quick=True, progress=False)
    failing = [f"{o.oracle} {o.verdict}: {o.describe()}" for o in verification.failing]
    return {"failing": failing}


def fingerprint(
    config: str, metric: str, modules: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, str]:
    """Fingerprints of what a row computes (`evidence.fingerprints`)."""
    settings = resolve_file(config, overrides, modules)
    return row_fingerprints({_ROW: settings}, modules, measures_runs=False)[_ROW]


def train(
    config: str,
    metric: str,
    modules: Sequence[str],
    overrides: Mapping[str, Any],
    folder: str,
    seeds: int,
) -> dict[str, Any]:
    """Trains the seeds of a row that are left, in one program.

    Returns:
      "workdirs" of all seeds, empty for one that diverged; "seconds" of all; "costs": "parameters",
      and "memory" in bytes, at most: of the first device, or of a CPU's process.

    Raises:
      UserError: the runs have no such metric.
    """
    settings = resolve_file(config, overrides, modules)
    sweep = Sweep(config, {_ROW: overrides}, seeds=seeds, metrics=[metric])
    spec = RowSpec(_ROW, settings, data=row_data({_ROW: settings})[_ROW])
    (row,) = train_rows(sweep, {Path(folder): spec}, seeds, modules)
    folders = seed_folders(Path(folder))
    workdirs = []
    for i, value in enumerate(row.metrics[metric]):
        if value is None:
            raise UserError(f"its runs have no validation metric {metric!r}")
        is_finite = math.isfinite(value)  # a seed that diverged may have no folder
        workdirs.append(str(folders[f"seed_{settings.seed + i}"]) if is_finite else "")
    of_device = jax.local_devices()[0].memory_stats() or {}  # a CPU has none
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = int(of_device.get("peak_bytes_in_use", resident))
    costs = {"memory": memory, "parameters": row.parameters}
    return {"workdirs": workdirs, "seconds": row.seconds, "costs": costs}


def evaluate(
    config: str, metric: str, modules: Sequence[str], workdirs: Sequence[str], split: str
) -> dict[str, Any]:
    """Evaluates trained parameters on a split; `config` is not read.

    Returns:
      "values", NaN where a workdir is empty or parameters are not finite; None of a test split that
      does not exist, or has the examples of the validation split. "digests" by rule of what all
      rows of a night share (`definition.RULES`).
    """
    values = [math.nan] * len(workdirs)
    digests: dict[str, str] = {}
    for i, workdir in enumerate(workdirs):
        if workdir:
            run = load(workdir, modules=modules)
            digests = digests or _shared_digests(run.settings, run.step, Path(workdir))
            if split == "test" and not _has_held_out_data(run.settings):
                return {"values": None, "digests": digests}
            with contextlib.suppress(NonFiniteError):
                values[i] = run.evaluate(split, progress=False)[metric]
    return {"values": values, "digests": digests}


def _has_held_out_data(settings: Settings) -> bool:
    data = data_digests({_ROW: settings}, ("valid", "test"))[_ROW]
    return TEST_DATA in data and data[TEST_DATA] != data[VALIDATION_DATA]


def _shared_digests(settings: Settings, step: int, workdir: Path) -> dict[str, str]:
    """Digests by rule of what a run shares with the baseline of a night."""
    made_by = run_digests([workdir])
    shared: dict[str, dict[str, Any]] = {
        "budget": {"step": step},
        "data": {name: made_by.get(f"{name} data", "") for name in ("training", "validation")},
        "metric": {name: made_by[name] for name in made_by if name.startswith("tokenizer")},
    }
    # Without defaults, so that a field that a later version adds refuses no proposal.
    for name, value in chosen_fields(settings.values).items():
        if rule_of(name) in shared:
            shared[rule_of(name)][name] = value
    return {rule: digest_of(values) for rule, values in shared.items()}


JOBS: Mapping[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (check, fingerprint, train, evaluate)
}


def guard_files(files: Sequence[str]) -> None:
    """From now on, code in these files that opens a file or starts a program fails.

    Imports, and what the libraries that it calls do (a compilation cache), are not its own.
    """
    guarded = set(files)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _GUARDED:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name in guarded:
                raise JobError("files", f"{Path(name).name} asks for {event} of {arguments[0]!r}")
            # The caller answers for the standard library and NumPy, except for their imports.
            module = str(frame.f_globals.get("__name__"))
            is_library = module.partition(".")[0] in {*sys.stdlib_module_names, "numpy"}
            if not is_library or module.startswith("importlib._bootstrap"):
                return
            frame = frame.f_back

    sys.addaudithook(refuse)


def do_job(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Does a job; returns its result, or the rule and reason of an error of the proposal."""
    try:
        return JOBS[kind](**arguments)
    except Stopped:
        raise
    except BusyError as error:
        return {"busy": str(error)}
    except Exception as error:
        link: BaseException | None = error
        while link is not None:
            if isinstance(link, JobError):
                return {"rule": link.rule, "reason": str(link)}
            link = link.__cause__
        rule = "config" if isinstance(error, UserError) else "crash"
        return {"rule": rule, "reason": describe_error(error).removeprefix(f"row {_ROW!r}: ")}


def main() -> None:
    """Does the work on the first line of stdin, and writes its answer to the file that it names."""
    work = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    guard_files(work["arguments"].pop("guarded"))
    result = do_job(work["kind"], work["arguments"])
    write_atomic(Path(work["answer"]), to_json(result))


if __name__ == "__main__":
    main()
