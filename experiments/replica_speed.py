# SPDX-License-Identifier: Apache-2.0
"""Measures the time saved by training seeds together, start and compilation included.

    python experiments/replica_speed.py --config=configs/quickstart.py --seeds=4 \\
        --config.train.num_steps=300

Trains the seeds in one program (`train --seeds`) and then one after another (`train`), both times
starting with an empty compilation cache. Prints one JSON object; exit status 1 if a seed's losses
of the first 20 steps differ by more than 1e-5. Set config fields as for `train`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPARED_STEPS, TOLERANCE = 20, 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    args, overrides = parser.parse_known_args()
    words = [f"--config={args.config}", "--config.logging.every_steps=1", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        together, alone = Path(folder, "together"), Path(folder, "alone")
        seconds = {"together": train(together, [[*words, f"--seeds={args.seeds}"]])}
        each = [[*words, f"--config.seed={seed}"] for seed in range(args.seeds)]
        seconds["one_by_one"] = train(alone, each)
        apart = max(
            abs(a / b - 1)
            for seed in range(args.seeds)
            for a, b in zip(
                losses(together / "0" / f"seed_{seed}"), losses(alone / str(seed)), strict=True
            )
        )
        speeds = {"together": args.seeds * speed(together / "0" / "seed_0")}
        speeds["one_by_one"] = speed(alone / "0")
    report = {f"{name}_s": round(value, 1) for name, value in seconds.items()}
    report |= {f"{name}_tokens_per_s": round(value) for name, value in speeds.items()}
    report["factor"] = round(seconds["one_by_one"] / seconds["together"], 2)
    print(json.dumps({**report, "seeds": args.seeds, "losses_apart": apart}))
    return int(apart > TOLERANCE)


def train(folder: Path, runs: list[list[str]]) -> float:
    """Trains the runs one after another; returns the total seconds."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    start = time.perf_counter()
    for number, words in enumerate(runs):
        command = [sys.executable, "-m", "transformer_jax", "train", *words]
        workdir = f"--workdir={folder / str(number)}"
        subprocess.run([*command, workdir], env=environment, check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def records(workdir: Path) -> list[dict]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["split"] == "train"]


def losses(workdir: Path) -> list[float]:
    return [record["loss"] for record in records(workdir)[:COMPARED_STEPS]]


def speed(workdir: Path) -> float:
    """Median tokens per second of a run."""
    found = sorted(record["tokens_per_s"] for record in records(workdir))
    return found[len(found) // 2]


if __name__ == "__main__":
    sys.exit(main())
