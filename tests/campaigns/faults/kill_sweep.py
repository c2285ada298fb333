# SPDX-License-Identifier: Apache-2.0
"""Tests that a sweep that is killed many times has the table of an uninterrupted one.

python tests/campaigns/faults/kill_sweep.py --workdir=runs/kill_sweep --kills=20

Trains a tiny sweep of two rows with two seeds each without interruption, and then again and again
with SIGKILLs at random moments, from the start of the process to the writing of the last table.
Prints one JSON object; exit status 1 if a table differs, a run has a step twice, or a finished row
was measured again.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kill_resume import start
from tiny_runs import QUICKEST, overrides, write_texts

CLOCKED = ("tokens_per_s", "seconds")
"""Columns of a table that depend on the clock."""
STEPS = {"train.num_steps": 40, "eval.every_steps": 20, "checkpoint.every_steps": 5}
ROWS = {"as it is": {}, "wide": {"model.d_ff": 64}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds both sweeps")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=12, help="longest time to a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = QUICKEST
    sweep = write_sweep(args.workdir.absolute())
    run(sweep, args.workdir / "whole")
    rng, results = random.Random(args.seed), dict[Path, int]()
    found: dict[str, Any] = {"kills": 0, "sweeps": 0, "wrong": []}
    while found["kills"] < args.kills:
        workdir = args.workdir / f"killed_{found['sweeps']}"
        while was_killed := run(sweep, workdir, rng.uniform(0, args.seconds)):
            found["kills"] += 1
            now = {path: path.stat().st_mtime_ns for path in workdir.glob("*/result.json")}
            again = [str(path) for path in results.keys() & now if results[path] != now[path]]
            found["wrong"] += [f"{path} was measured again" for path in again]
            results |= now
            if found["kills"] == args.kills:
                was_killed = run(sweep, workdir)
                break
        assert not was_killed
        found["sweeps"] += 1
        found["wrong"] += repeated_steps(workdir)
        if table(workdir) != table(args.workdir / "whole"):
            found["wrong"].append(f"{workdir} has another table")
    print(json.dumps(found))
    return int(bool(found["wrong"]))


def write_sweep(folder: Path, rows: Mapping[str, Any] = ROWS) -> Path:
    """Writes the texts and the file of the sweep."""
    write_texts(folder / "texts")
    base = overrides("language_model", folder / "texts") | STEPS
    config = str(Path(__file__).parents[3] / "configs" / "lm_from_text.py")
    fields = {"config": config, "rows": rows, "base": base, "seeds": 2}
    path = folder / "sweep.py"
    path.write_text(f"def get_sweep():\n    return {fields!r}\n")
    return path


def run(sweep: Path, workdir: Path, seconds: float | None = None) -> bool:
    """Runs a sweep, and kills it after some seconds; returns True if it was killed."""
    process = start(["sweep", f"--sweep={sweep}"], workdir)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True
    if process.returncode:
        raise SystemExit(f"the sweep ended with status {process.returncode}: {errors}")
    return False


def table(workdir: Path) -> list[dict[str, str]]:
    """Rows of a sweep's table, without columns that depend on the clock."""
    with (workdir / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: row[key] for key in row if key not in CLOCKED} for row in rows]


def repeated_steps(workdir: Path) -> list[str]:
    """Reports files of metrics with two records of a step and split."""
    found = []
    for path in sorted(workdir.glob("**/metrics.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        keys = [(record["step"], record["split"]) for record in records]
        found += [f"{path} has a step twice"] if len(set(keys)) < len(keys) else []
    return found


if __name__ == "__main__":
    sys.exit(main())
