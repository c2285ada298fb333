# SPDX-License-Identifier: Apache-2.0
"""Audits a run: digests of its records and checkpoints, then drawn segments trained again.

A segment is the training between two checkpoints that are kept, or before the first. Digests find
what was edited; who computes all of them again is found by training a segment that was altered.
"""

import dataclasses
import itertools
import math
import random
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.buckets.bucket import is_address
from transformer_jax.checkpoints import manifest, step_folder
from transformer_jax.checkpoints.step_folder import PARAMS, TRAINING, Leaves
from transformer_jax.checkpoints.store import state_id
from transformer_jax.data.batches.pipeline import batches_digest
from transformer_jax.errors import DivergedError, Stopped, UserError
from transformer_jax.logs.records import CHECKPOINT, OF_ONE_TRAINING, RESUMED, read_chain
from transformer_jax.runs import provenance
from transformer_jax.runs.config import override
from transformer_jax.runs.evaluate import score_of, selection_metric
from transformer_jax.runs.opened import Opened, open_workdir
from transformer_jax.runs.run import Run
from transformer_jax.runs.train import train_or_stop
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import CHECKPOINTS, METRICS, PREDICTIONS, TENSORBOARD, TOGETHER
from transformer_jax.runtime import platform
from transformer_jax.summary import Summarized

TOLERANCE = 0.02
"""Largest relative difference of losses, and of parameters relative to the way that they moved, on
another processor or with other libraries."""
_COMPILES = (provenance.LIBRARIES, provenance.PROCESSOR)
"""What decides on the program of a step; its bits depend on the number of cores, too."""
_NEVER = 10**9  # steps
_MOST_LINES = 9  # of metrics.jsonl that are named

Record = Mapping[str, Any]
Segment = tuple[int, int]
"""The steps after which it begins and ends."""


@dataclasses.dataclass(frozen=True, repr=False)
class Audit(Summarized):
    """The result of an audit.

    Attributes:
      segments: all segments of the run.
      retrained: those that were drawn and trained again; none where digests are wrong already.
      seed: of the draw.
      same_machine: bits were compared: libraries, processor and number of cores are those of the
        run, which was not resumed within a segment, and whose device gives the same bits each time.
      findings: what is not as it was recorded, a line each; empty if all is.
    """

    segments: Sequence[Segment]
    retrained: Sequence[Segment]
    seed: int
    same_machine: bool
    findings: Sequence[str]

    def probability(self, altered: int) -> float:
        """Probability that one of `altered` segments is among those drawn."""
        count = len(self.segments)
        drawn = len(self.retrained)
        return 1 - math.comb(count - altered, drawn) / math.comb(count, drawn)

    def summary(self) -> Mapping[str, Any]:
        if not self.retrained:
            return {"trained again": "nothing", "findings": len(self.findings)}
        count = len(self.segments)
        drawn = len(self.retrained)
        names = ", ".join(f"{start} to {end}" for start, end in self.retrained)
        steps = sum(end - start for start, end in self.retrained)
        altered = sorted({1, math.ceil(count / 2), count})
        return {
            "trained again": f"{names} ({steps} of {self.segments[-1][1]} steps)",
            "compared": "bit for bit" if self.same_machine else f"to {TOLERANCE:.0%}",
            "drawn": f"{drawn} of {count} segments, seed {self.seed}",
            "chance to find": f"1 - C({count} - m, {drawn}) / C({count}, {drawn}) "
            "if m segments were altered",
            "that is": ", ".join(f"m = {m}: {self.probability(m):.0%}" for m in altered),
            "findings": len(self.findings) or "none",
        }

    def as_text(self) -> str:
        """A line for each value of the summary, and for each finding."""
        lines = [f"{name}: {value}" for name, value in self.summary().items()]
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])


def audit(
    workdir: str | Path,
    modules: Modules = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    segments: int = 1,
    seed: int | None = None,
) -> Audit:
    """Audits a run that `train` has made by itself.

    Args:
      modules: the user's modules that the run needs.
      overrides: config values of this command, such as where the data are now.
      segments: how many to train again.
      seed: of the draw; None: one that nobody knows before.

    Raises:
      UserError: there is no such run, its data are not here, or it was trained with others in one
        program.
    """
    if is_address(str(workdir)):
        raise UserError(f"{workdir}: audit reads a folder of this machine; copy the run to one")
    # Checkpoints are read by absolute paths.
    opened = open_workdir(Path(workdir).absolute(), modules=modules, overrides=overrides)
    folder = opened.workdir
    if (folder.parent / TOGETHER).is_dir():
        raise UserError(f"{folder} was trained with others in one program; audit a run of its own")
    folders = step_folder.step_folders(folder / CHECKPOINTS)
    if not folders:
        raise UserError(f"{folder} has no checkpoint to audit")
    if not (folder / METRICS).is_file():
        raise UserError(f"{folder} has no {METRICS} to audit")
    lines, faults = read_chain(folder / METRICS)
    if not lines and faults:
        raise UserError(f"{folder / METRICS} has no digests: an earlier version trained the run")
    records = [r for r in lines if isinstance(r.get("step"), int) and "split" in r]
    findings = [f"{METRICS}: {fault}" for fault in faults[:_MOST_LINES]]
    if len(faults) > _MOST_LINES:
        findings.append(f"{METRICS}: {len(faults) - _MOST_LINES} more lines")
    findings += _check_checkpoints(opened, folders, records)
    pieces = list(itertools.pairwise([0, *folders]))
    seed = secrets.randbits(31) if seed is None else seed
    drawn = sorted(random.Random(seed).sample(pieces, min(segments, len(pieces))))
    same_machine = True
    retrained = [] if findings else drawn  # it is known then that something was altered
    for segment in retrained:
        of_segment, same = _retrain(opened, modules, segment, records)
        findings += of_segment
        same_machine &= same
    return Audit(pieces, retrained, seed, same_machine, findings)


def audit_run(
    run: Run,
    segments: int = 1,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Audit:
    """Checks the digests of a run and trains drawn segments of it again; arguments as of
    `lab.audit.audit`."""
    return audit(run.workdir, overrides=overrides, segments=segments, seed=seed)


def _check_checkpoints(
    opened: Opened, folders: Mapping[int, Path], records: Sequence[Record]
) -> list[str]:
    """Compares checkpoints with their manifests, the records, and the data and tokenizers here."""
    findings = []
    settings = opened.settings
    now = provenance.data_digests({"run": settings})["run"]
    now |= provenance.tokenizer_provenance(opened.tokenizers)
    named = [record.get(CHECKPOINT, "") for record in records]
    by_step = {text.partition(",")[0]: text for text in named}  # the last of each step
    selected_by = selection_metric(settings, opened.task)
    recorded = {(record["step"], record["split"]): record for record in records}
    for step, folder in folders.items():
        place = f"checkpoint {step}"
        damage = manifest.find_damage(folder)
        if damage:
            findings.append(f"{place}: {damage}")
            continue
        if by_step.get(f"step {step}", state_id(folder)) != state_id(folder):
            findings.append(f"{place}: its digest is not the one in {METRICS}")
        updates = _arrays(folder, TRAINING, ("step",))["step"]
        if updates != step:
            findings.append(f"{place}: its state is of step {updates}")
        digest = batches_digest(step_folder.read_data(folder))
        if recorded.get((step, "train"), {}).get("batches", digest) != digest:
            findings.append(f"{place}: its position in the data is not that of the records")
        score = step_folder.read_score(folder)
        record = recorded.get((step, "valid"))
        if score is not None and (record is None or score_of(record, selected_by) != score):
            findings.append(f"{place}: its score {score:g} is not in the records")
        saved = step_folder.read_provenance(folder)
        for name in now:
            if saved.get(name) != now[name]:
                findings.append(f"{place}: another {name}: {saved.get(name)}; here: {now[name]}")
    return findings


def _retrain(
    opened: Opened, modules: Modules, segment: Segment, records: Sequence[Record]
) -> tuple[list[str], bool]:
    """Trains a segment again in a folder of its own and compares records and the last state.

    Returns:
      (findings, whether libraries, processor and number of cores are the same)
    """
    start, end = segment
    # A start of the run restarts the means of records, so training pauses at the same steps.
    starts = {record.get(RESUMED, 0) for record in records}
    stops = [*sorted(step for step in starts if start < step < end), end]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if start:
            left_out = shutil.ignore_patterns(CHECKPOINTS, TENSORBOARD, PREDICTIONS)
            shutil.copytree(opened.workdir, folder, ignore=left_out)
            first = f"{CHECKPOINTS}/{start}"
            shutil.copytree(opened.workdir / first, folder / first)
        for begin, stop in itertools.pairwise([start, *stops]):
            intervals = {
                "logging.every_steps": _interval(records, "train", begin, stop),
                "eval.every_steps": _interval(records, "valid", begin, stop),
            }
            settings = override(opened.settings, {"logging.trackers": None, **intervals})
            try:
                run = train_or_stop(settings, folder, modules, until=stop, progress=False)
            except DivergedError as error:
                return [f"{start} to {end}: training again diverges: {error}"], True
            except Stopped as stopped:
                raise type(stopped)("the audit was stopped and has kept nothing") from None
        if run.step != end:
            return [f"{start} to {end}: training again ends at step {run.step}"], True
        checkpoint = opened.workdir / CHECKPOINTS / str(end)
        again = folder / CHECKPOINTS / str(end)
        here = step_folder.read_provenance(again)
        saved = step_folder.read_provenance(checkpoint)
        is_compiled_alike = all(saved.get(name) == here[name] for name in _COMPILES)
        same = (
            is_compiled_alike
            and saved.get(provenance.CORES) == here.get(provenance.CORES)
            and (platform.target().platform != "gpu" or opened.settings.train.reproducible)
            and len(stops) == 1  # elsewhere, perhaps, before the run was resumed
        )
        findings = []
        if is_compiled_alike and saved.get(provenance.STEP) != here[provenance.STEP]:
            findings.append("the compiled training step is not the recorded one")
        findings += _compare_records(records, read_chain(folder / METRICS)[0], segment, stops, same)
        if same:
            for item in (PARAMS, TRAINING):
                arrays = _arrays(checkpoint, item)
                trained = _arrays(again, item)
                others = [n for n in arrays if not np.array_equal(arrays[n], trained.get(n, ()))]
                findings += [f"{item}: the array {name} differs" for name in others[:1]]
        else:
            before = opened.workdir / CHECKPOINTS / str(start) if start else None
            findings += _compare_movements(checkpoint, again, before)
    return [f"{start} to {end}: {finding}" for finding in findings], same


def _interval(records: Sequence[Record], split: str, start: int, end: int) -> int:
    """The steps between records of a split, which a start of the run may have changed."""
    steps = [record["step"] for record in records if record["split"] == split]
    steps = [step for step in steps if start < step <= end]
    if not steps:
        return _NEVER
    return math.gcd(*(step for step in steps if step < end)) or end


def _compare_records(
    records: Sequence[Record],
    trained: Sequence[Record],
    segment: Segment,
    stops: Sequence[int],
    same: bool,
) -> list[str]:
    """Compares the records of a segment with those of its retraining; returns the findings."""
    tolerance = 0.0 if same else TOLERANCE
    again = _by_step(trained, segment)
    of_run = _by_step(records, segment)
    findings = []
    for step, split in sorted({*again, *of_run}):
        place = f"the record of {split} at step {step}"
        here = again.get((step, split))
        record = of_run.get((step, split))
        if here is None or record is None:
            if step not in stops:  # training again may pause there
                findings.append(
                    f"{place} is {'missing' if record is None else 'not made by training again'}"
                )
            continue
        names = [name for name in {**here, **record} if not OF_ONE_TRAINING.search(name)]
        if split == "train" and _first_step(records, step) < segment[0]:
            names = ["batches"]  # its means begin before the segment
        if not same:
            names = [name for name in ("batches", "loss") if name in names]
        for name in names:
            value = record.get(name)
            expected = here.get(name)
            is_close = value == expected
            if isinstance(value, float) and isinstance(expected, float):
                is_close = math.isclose(value, expected, rel_tol=tolerance)
            if not is_close:
                findings.append(f"{place}: {name} is {value}; trained again: {expected}")
    return findings


def _by_step(records: Sequence[Record], segment: Segment) -> dict[tuple[int, str], Record]:
    """The records of training and validation in a segment."""
    steps = range(segment[0] + 1, segment[1] + 1)
    chosen = [r for r in records if r["step"] in steps and r["split"] in ("train", "valid")]
    return {(record["step"], record["split"]): record for record in chosen}


def _first_step(records: Sequence[Record], step: int) -> int:
    """The step after which the means of a record of training begin."""
    before = [r["step"] for r in records if r["split"] == "train" and r["step"] < step]
    starts = [r.get(RESUMED, 0) for r in records]
    return max([0, *before, *(start for start in starts if start < step)])


def _compare_movements(checkpoint: Path, again: Path, before: Path | None) -> list[str]:
    """Compares parameters: a finding if they differ by more than `TOLERANCE` of their movement."""
    saved = _arrays(checkpoint, PARAMS)
    here = _arrays(again, PARAMS)
    start = _arrays(before, PARAMS) if before else {}
    # In the first segment, parameters that begin at zero; others moved less than their size.
    apart = math.hypot(*(float(np.linalg.norm(saved[n] - here[n])) for n in saved))
    moved = math.hypot(*(float(np.linalg.norm(saved[n] - start.get(n, 0))) for n in saved))
    if apart <= TOLERANCE * moved:
        return []
    if not moved:
        return ["the parameters are those of the checkpoint before it; trained again, they move"]
    return [f"the parameters are apart by {apart / moved:.1%} of the way that they moved"]


def _arrays(folder: Path, item: str, names: Sequence[str] = ()) -> Leaves:
    """The arrays of an item, or those of these names, on the host."""
    shapes = step_folder.saved_arrays(folder, item)
    wanted = {n: np.empty(shapes[n].shape, shapes[n].dtype) for n in names or shapes}
    return step_folder.read_some_arrays(folder, item, wanted)
