# SPDX-License-Identifier: Apache-2.0
"""Tests that a run that is killed many times ends bit for bit as an uninterrupted one.

python tests/campaigns/faults/kill_resume.py --config=configs/quickstart.py --workdir=runs/kill

Trains once without interruption and once with SIGKILL (or `--signal=SIGTERM`, which loses no step)
at random steps, some of them while a checkpoint is being written. Then compares the last
checkpoints of the two runs, and their metrics. Set config fields as for `train`. Prints one JSON
object; exit status 1 if anything differs, or a kill lost too many steps: more than one checkpoint
interval with `checkpoint.asynchronous=false`, otherwise more than two (the last save may have been
in progress), after SIGTERM any.

`--quick` is for small models: compilation is not optimized, and all programs are cached.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

import transformer_jax as tj
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import (
    PARAMS,
    TRAINING,
    read_arrays,
    read_data,
    saved_arrays,
    step_folders,
)

SAVING = f"*{ocp.path.atomicity_types.TMP_DIR_SUFFIX}"
TAIL = 1 << 14  # bytes at the end of metrics.jsonl, some records
QUICK = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_disable_hlo_passes=onednn-contraction-rewriter,onednn-ops-rewriter",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
"""Flags for programs that compile fast and can be cached."""
RESUMABLE = 75
CLOCKED = ("time", "tokens_per_s", "step_ms", "mfu", "xla_flops_per_s", "goodput", "share_")
CLOCKED += ("sha256", "checkpoint", "resumed")
"""Prefixes of metrics that depend on the clock, and of digests of these."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds both runs")
    parser.add_argument("--kills", type=int, default=3, help="at random steps")
    parser.add_argument("--during_save", type=int, default=1, help="at least so many during a save")
    parser.add_argument("--signal", choices=("SIGKILL", "SIGTERM"), default="SIGKILL")
    parser.add_argument("--quick", action="store_true", help="start sooner: for small models")
    parser.add_argument("--seed", type=int, default=0, help="of the steps")
    args, overrides = parser.parse_known_args()
    whole, killed = args.workdir / "uninterrupted", args.workdir / "killed"
    fields = dict(word.removeprefix("--config.").split("=", 1) for word in overrides)
    config = tj.config(args.config, fields)
    num_steps, every = config.train.num_steps, config.checkpoint.every_steps
    if args.quick:
        os.environ |= QUICK
    # With a record of every step, kills can be timed and metrics compared.
    command = ["train", f"--config={args.config}", *overrides, "--config.logging.every_steps=1"]

    finish(command, whole)
    draw, how = random.Random(args.seed), signal.Signals[args.signal]
    kills = []
    for kill in kill_at_random(command, killed, num_steps, args.kills, args.during_save, how, draw):
        kills.append(kill)
        print(f"kill {len(kills)}: {kill}", file=sys.stderr)
    finish(command, killed)
    different = differences(whole, killed)
    if metrics(whole) != metrics(killed):
        different.append("metrics.jsonl")
    lost = max(kill["after_step"] - kill["goes_on_from"] for kill in kills)
    may_lose = every * (2 if config.checkpoint.asynchronous else 1)
    may_lose, status = (0, RESUMABLE) if how == signal.SIGTERM else (may_lose, -how)
    if lost > may_lose:
        different.append(f"{lost} steps lost, more than {may_lose}")
    if strange := {kill["status"] for kill in kills} - {status, 0}:
        different.append(f"statuses {sorted(strange)}, not {status}")
    report = {
        "config": args.config,
        "signal": how.name,
        "num_steps": num_steps,
        "kills": len(kills),
        "during_save": sum(kill["during_save"] for kill in kills),
        "damaged": sum(kill["damage"] is not None for kill in kills),
        "most_steps_lost": lost,
        "arrays": len(last_arrays(whole)),
        "identical": not different,
        "different": different,
    }
    print(json.dumps(report))
    return int(bool(different))


def start(command: list[str], workdir: Path) -> subprocess.Popen:
    """Starts a shell command on a workdir; its messages go to `stderr`."""
    words = [sys.executable, "-m", "transformer_jax", *command, f"--workdir={workdir}"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(command: list[str], workdir: Path) -> None:
    process = start(command, workdir)
    _, messages = process.communicate()
    if process.returncode:
        sys.exit(messages)


def kill_at_random(
    command: list[str],
    workdir: Path,
    num_steps: int,
    count: int,
    during_save: int,
    how: signal.Signals,
    draw: random.Random,
) -> Iterator[dict]:
    """Starts and kills a run `count` times, or until `during_save` kills hit a save.

    The kills are spread over the steps of the run.
    """
    while count > 0 or during_save > 0:
        left = max(count, during_save)
        first = last_checkpoint(workdir) + 1
        far = first + 2 * (num_steps - first) // (left + 1)
        began, step = time.time(), draw.randrange(first, max(far, first + 1))
        wait_for_save = draw.random() < during_save / left

        def due(began=began, step=step, wait_for_save=wait_for_save) -> bool:
            return last_step(workdir, began) >= step and (not wait_for_save or saving(workdir))

        wait_until(due, process := start(command, workdir))
        process.send_signal(how)
        process.communicate()
        count, during_save = count - 1, during_save - saving(workdir)
        yield {
            "status": process.returncode,
            "after_step": last_step(workdir, began),
            "during_save": saving(workdir),
            "goes_on_from": last_checkpoint(workdir),
            "damage": latest_damage(workdir),
        }


def latest_damage(workdir: Path) -> str | None:
    """Damage of the newest checkpoint; None if it is intact or missing."""
    folders = step_folders(workdir / "checkpoints")
    return manifest.find_damage(folders[max(folders)]) if folders else None


def wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Waits until the condition holds; exits if the process ends first."""
    while not condition():
        if process.poll() is not None:
            sys.exit(f"the run ended before it could be killed: {process.communicate()[1]}")
        time.sleep(0.003)


def last_checkpoint(workdir: Path) -> int:
    return max(step_folders(workdir / "checkpoints"), default=0)


def newest_record(workdir: Path) -> dict:
    """Last complete record of a run; empty if there is none."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().splitlines(keepends=True)
    complete = [line for line in lines if line.endswith(b"\n")]
    return json.loads(complete[-1]) if complete else {}


def last_step(workdir: Path, since: float) -> int:
    """Last step recorded after the time `since`; 0 if there is none."""
    record = newest_record(workdir)
    return record["step"] if record and record["time"] >= since else 0


def saving(workdir: Path) -> bool:
    """Returns True if a checkpoint is being written."""
    return any((workdir / "checkpoints").glob(SAVING))


def differences(one: Path, other: Path) -> list[str]:
    """Names of the arrays that differ between the last checkpoints of two workdirs."""
    left, right = last_arrays(one), last_arrays(other)
    return sorted(name for name in left | right if left.get(name) != right.get(name))


def last_arrays(workdir: Path) -> dict[str, tuple]:
    """Arrays of the last checkpoint by name: (dtype, shape, bytes)."""
    step, folder = max(step_folders(workdir / "checkpoints").items())
    found = {"step": (step,), "data": (read_data(folder),)}
    for item in (PARAMS, TRAINING):
        stored = saved_arrays(folder, item)
        shapes = {n: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for n, leaf in stored.items()}
        for name, leaf in read_arrays(folder, item, shapes).items():
            array = np.asarray(leaf)
            found[f"{item}/{name}"] = (array.dtype, array.shape, array.tobytes())
    return found


def metrics(workdir: Path) -> list[dict]:
    """Records of a run, without metrics that depend on the clock."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    return [{k: v for k, v in one.items() if not k.startswith(CLOCKED)} for one in records]


if __name__ == "__main__":
    sys.exit(main())
