# SPDX-License-Identifier: Apache-2.0
"""Measures the time saved by training seeds, or rows of a sweep, together, compilation included.

    python experiments/replica_speed.py --config=configs/quickstart.py --seeds=4 \\
        --config.train.num_steps=300
    python experiments/replica_speed.py --config=configs/quickstart.py \\
        --vary=model.dropout_rate=0.05,0.1,0.2,0.3 --config.train.num_steps=300

Trains the seeds in one program (`train --seeds`) and then one after another (`train`), both times
starting with an empty compilation cache; with `--vary` the rows of a sweep (`sweep`, then
`sweep --at_once=1`). `--repeats` alternates several times and adds up the seconds. Prints one JSON
object, with seconds of the clock and of the processors; exit status 1 if losses of the first 20
steps differ by more than 1e-5. Set config fields as for `train`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from transformer_jax.runs.workdir import read_metrics

COMPARED_STEPS, TOLERANCE = 20, 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--vary", metavar="FIELD=VALUE,VALUE", help="rows of a sweep, not seeds")
    parser.add_argument("--repeats", type=int, default=1)
    args, overrides = parser.parse_known_args()
    words = [f"--config={args.config}", "--config.logging.every_steps=1", *overrides]
    spent = {"together": np.zeros(2), "one_by_one": np.zeros(2)}
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            together, alone, names = (rows if args.vary else seeds)(args, words, folder)
            spent["together"] += train(folder / "together", together)
            spent["one_by_one"] += train(folder / "alone", alone)
            pairs = [(folder / "together" / one, folder / "alone" / other) for one, other in names]
            apart = max(
                abs(a / b - 1)
                for one, other in pairs
                for a, b in zip(losses(one), losses(other), strict=True)
            )
            speeds = {"together": len(pairs) * speed(pairs[0][0]), "one_by_one": speed(pairs[0][1])}
    factors = spent["one_by_one"] / spent["together"]
    report = {f"{name}_s": round(seconds[0], 1) for name, seconds in spent.items()}
    report |= {f"{name}_cpu_s": round(seconds[1], 1) for name, seconds in spent.items()}
    report |= {f"{name}_tokens_per_s": round(value) for name, value in speeds.items()}
    report |= {"factor": round(factors[0], 2), "cpu_factor": round(factors[1], 2)}
    print(json.dumps({**report, "runs": len(pairs), "losses_apart": apart}))
    return int(apart > TOLERANCE)


type Commands = tuple[list[list[str]], list[list[str]], list[tuple[str, str]]]
"""Commands that train runs together and one by one, and the names of each run in both folders."""


def seeds(args: argparse.Namespace, words: list[str], _: Path) -> Commands:
    together = [["train", *words, f"--seeds={args.seeds}"]]
    alone = [["train", *words, f"--config.seed={seed}"] for seed in range(args.seeds)]
    return together, alone, [(f"0/seed_{seed}", f"{seed}") for seed in range(args.seeds)]


def rows(args: argparse.Namespace, words: list[str], folder: Path) -> Commands:
    field, _, values = args.vary.partition("=")
    changes = {value: {field: value} for value in values.split(",")}
    sweep = {"config": args.config, "rows": changes, "seeds": 1}
    path = folder / "sweep.py"
    path.write_text(f"def get_sweep():\n    return {sweep!r}\n")
    command = ["sweep", f"--sweep={path}", *words]
    return [command], [[*command, "--at_once=1"]], [(f"0/{row}/seed_0",) * 2 for row in changes]


def train(folder: Path, runs: list[list[str]]) -> np.ndarray:
    """Runs commands one after another; returns the seconds of clock and processors."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    before = seconds()
    for number, words in enumerate(runs):
        command = [sys.executable, "-m", "transformer_jax", *words]
        workdir = f"--workdir={folder / str(number)}"
        subprocess.run([*command, workdir], env=environment, check=True, stdout=sys.stderr)
    return seconds() - before


def seconds() -> np.ndarray:
    """Seconds of the clock, and of processors by finished children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def records(workdir: Path) -> list[dict]:
    return [record for record in read_metrics(workdir) if record["split"] == "train"]


def losses(workdir: Path) -> list[float]:
    return [record["loss"] for record in records(workdir)[:COMPARED_STEPS]]


def speed(workdir: Path) -> float:
    """Median tokens per second of a run."""
    return statistics.median_high(record["tokens_per_s"] for record in records(workdir))


if __name__ == "__main__":
    sys.exit(main())
