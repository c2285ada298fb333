# SPDX-License-Identifier: Apache-2.0
"""Altered and honest runs, and which of them `audit` finds.

    python experiments/audit_simulation.py --workdir=DIR --part=honest     # then each kind of KINDS
    python experiments/audit_simulation.py --workdir=DIR --report

Runs of a small language model, 40 steps, four segments. Half of the altered runs are edited as they
are; of the others all digests, manifests and the recorded provenance are made again afterwards, as
by somebody who knows this package. One drawn segment is trained again.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import transformer_jax as tj
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import (
    PARAMS,
    TRAINING,
    Leaves,
    read_data,
    read_provenance,
    read_score,
    read_some_arrays,
    saved_arrays,
    step_folders,
)
from transformer_jax.checkpoints.store import CheckpointConfig, Checkpoints, state_id
from transformer_jax.lab.audit import audit
from transformer_jax.logs.records import CHECKPOINT, DIGEST, chained, to_json
from transformer_jax.logs.run_log import RunLog
from transformer_jax.nn.feed_forward import ACTIVATIONS

WORDS = ["the", "a", "dog", "cat", "sees", "red", "house", "runs", "old", "man"]
SMALL = {
    **{"model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2, "model.num_layers": 1},
    **{"model.dtype": "float32", "tokenizer.kind": "char", "tokenizer.vocab_size": 100},
    **{"data.documents": "line", "data.packing": "apart", "data.max_length": 64},
    **{"train.num_steps": 40, "train.tokens_per_batch": 512, "optimizer.warmup_steps": 5},
    **{"eval.every_steps": 10, "checkpoint.every_steps": 10, "checkpoint.keep": 10},
    **{"logging.every_steps": 5, "logging.trackers": None},
}
SEGMENTS = 4
ELSEWHERE = "_elsewhere"
BASE_SEEDS = 2


class Simulation:
    """Runs in a folder, each trained once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        rng = random.Random(0)
        lines = [" ".join(rng.choices(WORDS, k=8)) for _ in range(420)]
        altered = ["the old dog runs red", *lines[1:400]]
        texts = {"train": lines[:400], "altered": altered, "valid": lines[400:]}
        for name, text in texts.items():
            path = folder / f"{name}.txt"
            if not path.exists():
                path.write_text("".join(f"{line}\n" for line in text))

    def train(self, name: str, changes: dict | None = None, until: int | None = None) -> Path:
        """The workdir of a run with these changes of the config."""
        workdir = self.folder / name
        if not (workdir / "checkpoints" / "40").exists():
            splits = ("train", "valid")
            texts = {f"data.{split}_text": str(self.folder / f"{split}.txt") for split in splits}
            config = tj.config("lm_from_text", SMALL | texts | (changes or {}))
            tj.train(config, workdir, until=until, progress=False)
        return workdir

    def base(self, number: int) -> Path:
        """An honest run."""
        seed = number % BASE_SEEDS
        return self.train(f"base_{seed}", {"seed": seed})

    def copy(self, run: Path) -> Path:
        """A copy to alter."""
        copy = self.folder / f"copy_{os.getpid()}"  # parts may run at once
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(run, copy)


def read_lines(run: Path) -> list[dict]:
    """The records of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_lines(run: Path, records: list[dict]) -> None:
    """Writes the records with the digests that they have."""
    (run / "metrics.jsonl").write_text("".join(f"{to_json(record)}\n" for record in records))


def make_digests_again(run: Path) -> None:
    """Writes manifests and chained digests that fit the altered run."""
    folders = step_folders(run / "checkpoints")
    for folder in folders.values():
        manifest.write_manifest(folder)
    names = {f"step {step}": state_id(folder) for step, folder in folders.items()}
    records = read_lines(run)
    before = ""
    lines = []
    for record in records:
        del record[DIGEST]
        if CHECKPOINT in record:
            step = record[CHECKPOINT].partition(",")[0]
            record[CHECKPOINT] = names.get(step, record[CHECKPOINT])
        lines.append(chained(record, before))
        before = lines[-1][DIGEST]
    write_lines(run, lines)


def rewrite(
    run: Path,
    step: int,
    change: Callable[[Leaves, Leaves], None],
    provenance: dict | None = None,
    to: int | None = None,
) -> None:
    """Saves a checkpoint of a run again, with other arrays."""
    folder = run / "checkpoints" / str(step)
    items = []
    for item in (PARAMS, TRAINING):
        shapes = saved_arrays(folder, item)
        empty = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
        items.append(read_some_arrays(folder, item, empty))
    change(*items)
    params, training = ({n: np.array(x) for n, x in leaves.items()} for leaves in items)
    data = read_data(folder)
    score = read_score(folder)
    saved = read_provenance(folder) | (provenance or {})
    shutil.rmtree(folder)
    keep = CheckpointConfig(keep=100, asynchronous=False)
    with Checkpoints(run / "checkpoints", keep) as checkpoints:
        checkpoints.provenance = saved
        checkpoints.save(to or step, {PARAMS: params, **training}, data)
        if score is not None:
            checkpoints.score(to or step, score)


def edit_bytes(run: Path, step: int, item: str) -> None:
    """Changes a byte of the largest file of an item."""
    files = (run / "checkpoints" / str(step) / item).rglob("*")
    path = max((file for file in files if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@dataclasses.dataclass
class Case:
    """One altered run.

    Attributes:
      number: of the case in its kind; a case with digests made again has a careful forger.
      segments: numbers of the segments that were altered, set by the kind.
    """

    simulation: Simulation
    number: int
    is_careful: bool
    rng: random.Random
    segments: set[int] = dataclasses.field(default_factory=set)

    def step(self) -> int:
        """A checkpoint; what is altered there shows in the segments before and after it."""
        step = self.rng.choice([10, 20, 30, 40])
        number = step // 10
        self.segments = {number - 1, number} & set(range(SEGMENTS))
        return step

    def record(self, split: str) -> tuple[Path, list[dict], dict]:
        """A run to alter, its records, and one of them."""
        run = self.simulation.copy(self.simulation.base(self.number))
        records = read_lines(run)
        record = self.rng.choice([record for record in records if record["split"] == split])
        self.segments = {(record["step"] - 1) // 10}
        return run, records, record

    def pass_off(self, run: Path, base: Path, *columns: str) -> Path:
        """A copy of a run with the config of another, and if the forger is careful its
        provenance and columns of its records."""
        copy = self.simulation.copy(run)
        shutil.copy(base / "config.json", copy / "config.json")
        self.segments = set(range(SEGMENTS))
        if self.is_careful:
            for step, folder in step_folders(copy / "checkpoints").items():
                of_base = read_provenance(base / "checkpoints" / str(step))
                rewrite(copy, int(folder.name), lambda *_: None, of_base)
            records = read_lines(copy)
            for record, original in zip(records, read_lines(base), strict=True):
                record.update({n: original[n] for n in columns if n in original})
            write_lines(copy, records)
        return copy


def metric(case: Case) -> Path:
    """the loss of a record of training, 1% lower"""
    return _with_lower_loss(case, "train")[0]


def valid_metric(case: Case) -> Path:
    """the validation loss of a record, 1% lower"""
    run, record = _with_lower_loss(case, "valid")
    if case.is_careful:
        path = run / "checkpoints" / str(record["step"]) / "metrics" / "metrics"
        path.write_text(json.dumps({"score": -record["loss"]}))
    return run


def _with_lower_loss(case: Case, split: str) -> tuple[Path, dict]:
    run, records, record = case.record(split)
    record["loss"] *= 0.99
    write_lines(run, records)
    return run, record


def lines(case: Case) -> Path:
    """a record removed, or the steps of two swapped"""
    run, records, record = case.record("train")
    if case.number % 2:
        records.remove(record)
    else:
        other = case.rng.choice(
            [r for r in records if r["split"] == "train" and r["step"] != record["step"]]
        )
        case.segments.add((other["step"] - 1) // 10)
        record["step"], other["step"] = other["step"], record["step"]
    write_lines(run, records)
    return run


def _array(case: Case, item: str, index: int) -> Path:
    run = case.simulation.copy(case.simulation.base(case.number))
    step = case.step()

    def change(*items: Leaves) -> None:
        leaves = items[index]
        names = [n for n in leaves if np.asarray(leaves[n]).ndim and ("mu" in n or not index)]
        name = case.rng.choice(sorted(names))
        array = np.array(leaves[name])
        array.flat[case.rng.randrange(array.size)] += 1e-3
        leaves[name] = array

    if case.is_careful:
        rewrite(run, step, change)
    else:
        edit_bytes(run, step, item)
    return run


def parameter(case: Case) -> Path:
    """a number of the parameters of one checkpoint"""
    return _array(case, PARAMS, 0)


def moment(case: Case) -> Path:
    """a number of the optimizer's moments in one checkpoint"""
    return _array(case, TRAINING, 1)


def order(case: Case) -> Path:
    """another order of the data"""
    run = case.simulation.train("order", {"data.order_seed": 7})
    return case.pass_off(run, case.simulation.base(0))


def example(case: Case) -> Path:
    """one of 400 lines of the training data"""
    simulation = case.simulation
    altered = {"data.train_text": str(simulation.folder / "altered.txt")}
    return case.pass_off(simulation.train("example", altered), simulation.base(0))


def learning_rate(case: Case) -> Path:
    """a learning rate 2% higher"""
    base = case.simulation.base(0)
    rate = json.loads((base / "config.json").read_text())["optimizer"]["learning_rate"]
    run = case.simulation.train("rate", {"optimizer.learning_rate": 1.02 * rate})
    return case.pass_off(run, base, "learning_rate")


def code(case: Case) -> Path:
    """an activation whose code was changed"""
    base = case.simulation.base(0)
    original = ACTIVATIONS.configured

    def smaller(name: str, config: Any) -> Callable:
        activation = original(name, config)
        return lambda x: 0.99 * activation(x)

    with mock.patch.object(ACTIVATIONS, "configured", smaller):
        run = case.simulation.train("code")
    return case.pass_off(run, base)


def steps_claimed(case: Case) -> Path:
    """20 steps passed off as 40, by doubling all numbers of steps"""
    half = {"train.num_steps": 20, "checkpoint.every_steps": 5, "eval.every_steps": 5}
    half |= {"logging.every_steps": 5}
    workdir = case.simulation.folder / "half"
    run = case.simulation.copy(workdir if workdir.exists() else case.simulation.train("half", half))
    shutil.copy(case.simulation.base(0) / "config.json", run / "config.json")
    for step in sorted(step_folders(run / "checkpoints"), reverse=True):
        if case.is_careful:
            doubled = {"step": np.asarray(2 * step, np.int32)}
            rewrite(run, step, lambda _, t, new=doubled: t.update(new), to=2 * step)
        else:
            (run / "checkpoints" / str(step)).rename(run / "checkpoints" / str(2 * step))
    records = read_lines(run)
    for record in records:
        record["step"] *= 2
    write_lines(run, records)
    case.segments = set(range(SEGMENTS))
    return run


def other_checkpoint(case: Case) -> Path:
    """a checkpoint of a run with another seed"""
    run = case.simulation.copy(case.simulation.base(case.number))
    other = case.simulation.base(case.number + 1)
    step = case.step()
    shutil.rmtree(run / "checkpoints" / str(step))
    shutil.copytree(other / "checkpoints" / str(step), run / "checkpoints" / str(step))
    if case.is_careful:
        records = read_lines(run)
        for record, original in zip(records, read_lines(other), strict=True):
            if record["step"] == step:
                names = [n for n in original if n not in (CHECKPOINT, DIGEST, "time")]
                record.update({name: original[name] for name in names})
        write_lines(run, records)
    return run


ARRAYS_AND_RECORDS = (metric, valid_metric, lines, parameter, moment, other_checkpoint)
PASSED_OFF = (order, example, learning_rate, code, steps_claimed)
KINDS = {kind.__name__: kind for kind in (*ARRAYS_AND_RECORDS, *PASSED_OFF)}


def honest_runs(simulation: Simulation) -> Iterator[tuple[str, Path]]:
    """Runs that were trained in ways that must not matter."""
    for seed in range(2):
        yield "one seed or another", simulation.base(seed)
    for steps in ((7, 23), (10, 20)):
        name = f"paused_{steps[0]}"
        for step in steps:
            simulation.train(name, until=step)
        yield "paused and resumed", simulation.train(name)
    for number, stop in enumerate((13, 30)):

        def stop_at(_: RunLog, step: int, last: int = stop) -> None:
            if step == last:
                os.kill(os.getpid(), signal.SIGTERM)

        name = f"stopped_{number}"
        if not (simulation.folder / name).exists():
            with mock.patch.object(RunLog, "advance", stop_at), contextlib.suppress(tj.Stopped):
                simulation.train(name)
        yield "stopped by SIGTERM and resumed", simulation.train(name)
    for step in (20, 30):
        killed = simulation.folder / f"killed_{step}"
        if not killed.exists():
            shutil.copytree(simulation.base(0), killed)
            for saved, folder in step_folders(killed / "checkpoints").items():
                if saved > step:
                    shutil.rmtree(folder)
            write_lines(killed, [r for r in read_lines(killed) if r["step"] <= step + 5])
        yield "killed and resumed", simulation.train(killed.name, {"seed": 0})
    for parts in (2, 4):
        steps = {"train.accumulation_steps": parts}
        yield "micro-batches", simulation.train(f"parts_{parts}", steps)
    for state in ("cold", "warm"):
        cache = {"data.cache_dir": str(simulation.folder / "cache"), "data.order_seed": 1}
        yield f"token cache, {state}", simulation.train(state, cache)
    for number in range(2):
        workers = {"data.num_workers": 1 + number}
        yield "worker processes", simulation.train(f"workers_{number}", workers)
    for number, every in enumerate((2, 10)):
        simulation.train(f"logged_{number}", until=20)
        changed = {"logging.every_steps": every, "eval.every_steps": 20}
        yield "records at other steps after a resume", simulation.train(f"logged_{number}", changed)
    for number in range(2):
        plateau = {"optimizer.plateau_patience": 1 + number, "optimizer.learning_rate": 0.3}
        yield "learning rate lowered at plateaus", simulation.train(f"plateau_{number}", plateau)
    for number in range(2):
        keep = {"checkpoint.keep": 1 + number}
        yield "few checkpoints kept", simulation.train(f"kept_{number}", keep)


def run_part(simulation: Simulation, part: str, cases: int) -> Iterator[dict]:
    """Results of a part, a record for each audit."""
    if part == "honest":
        for way, run in honest_runs(simulation):
            for draw in range(cases // 4):
                yield {"way": way, **_audited(run, draw)}
        return
    for number in range(cases):
        careful = number >= cases // 2
        rng = random.Random(f"{part} {number}")
        case = Case(simulation, number, careful, rng)
        run = KINDS[part](case)
        if careful:
            make_digests_again(run)
        result = _audited(run, rng.randrange(2**31))
        chance = len(case.segments) / SEGMENTS
        hit = any(start // 10 in case.segments for start, _ in result["retrained"])
        yield {"careful": careful, "chance": chance, "hit": hit, **result}


def _audited(run: Path, seed: int) -> dict:
    start = time.process_time()
    try:
        report = audit(run, segments=1, seed=seed)
        answer = {"findings": list(report.findings), "retrained": list(report.retrained)}
        answer["same_machine"] = report.same_machine
    except tj.UserError as error:
        answer = {"findings": [f"refused: {error}"], "retrained": [], "same_machine": True}
    return answer | {"seconds": time.process_time() - start}


def report(results: dict[str, list[dict]]) -> str:
    """The tables."""
    table = ["| altered | edited: found | digests made again: found | expected | missed | s |"]
    table.append("| --- " * 6 + "|")
    for kind, alter in KINDS.items():
        of_kind = results.get(kind, [])
        edited = [result for result in of_kind if not result["careful"]]
        careful = [result for result in of_kind if result["careful"]]
        missed = sum(result["hit"] and not result["findings"] for result in careful)
        expected = sum(1.0 if not result["retrained"] else result["chance"] for result in careful)
        shares = [f"{num_found(group)}/{len(group)}" for group in (edited, careful)]
        cells = [alter.__doc__, *shares, f"{expected:.1f}", missed, mean_seconds(of_kind)]
        table.append(f"| {' | '.join(map(str, cells))} |")
    ways = collections.defaultdict(list)
    for result in results.get("honest", []):
        ways[result["way"]].append(result)
    elsewhere = {
        name.removesuffix(ELSEWHERE): of_name
        for name, of_name in results.items()
        if name.endswith(ELSEWHERE)
    }
    for head, groups in (
        ("| honest | audits | false alarms | s |", ways),
        ("| on another machine | audits | findings | s |", elsewhere),
    ):
        table += ["", head, "| --- | --- | --- | --- |"]
        for name, group in groups.items():
            table.append(f"| {name} | {len(group)} | {num_found(group)} | {mean_seconds(group)} |")
    return "\n".join(table)


def num_found(results: list[dict]) -> int:
    return sum(bool(result["findings"]) for result in results)


def mean_seconds(results: list[dict]) -> str:
    return f"{np.mean([result['seconds'] for result in results]):.1f}" if results else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--part", choices=["honest", *KINDS], action="append", default=[])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--elsewhere", action="store_true", help="XLA_FLAGS are others now")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    simulation = Simulation(args.workdir)
    for part in args.part:
        name = f"{part}{ELSEWHERE if args.elsewhere else ''}.jsonl"
        with (args.workdir / name).open("w") as file:
            for result in run_part(simulation, part, args.cases):
                file.write(json.dumps(result) + "\n")
                file.flush()
    if args.report:
        files = args.workdir.glob("*.jsonl")
        results = {f.stem: [json.loads(line) for line in f.open()] for f in files}
        print(report(results))


if __name__ == "__main__":
    main()
