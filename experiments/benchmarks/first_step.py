# SPDX-License-Identifier: Apache-2.0
"""Measures the time from starting `train` to its first step, with an empty and a warm cache.

    python experiments/benchmarks/first_step.py --config=configs/quickstart.py --rounds=3

Each round has its own compilation cache and two new workdirs: the first start compiles, the second
loads the compiled programs. The time ends at the line with the first step's metrics; tokenizer and
data are included. Prints one JSON object: medians of seconds of the clock, and CPU seconds.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    args, overrides = parser.parse_known_args()
    starts: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, spent in starts.items():
                spent.append(to_the_first_step(args.config, overrides, Path(folder), name))
                print(f"{name}: %.1f s, %.1f CPU s" % spent[-1], file=sys.stderr)
    report = {}
    for name, spent in starts.items():
        seconds, cpu_seconds = map(statistics.median, zip(*spent, strict=True))
        report |= {name: round(seconds, 1), f"{name}_cpu": round(cpu_seconds, 1)}
    print(json.dumps(report))
    return 0


def to_the_first_step(
    config: str, overrides: list[str], folder: Path, name: str
) -> tuple[float, float]:
    """Seconds and CPU seconds to the first step of a new run, which is then killed. The cache is in
    `folder`."""
    words = [f"--config={config}", f"--workdir={folder / name}", "--config.logging.every_steps=1"]
    command = [sys.executable, "-m", "transformer_jax", "train", *words, *overrides]
    start = time.perf_counter()
    cpu_start = children_cpu_seconds()
    seconds = None
    with subprocess.Popen(
        command,
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        told = ""
        for told in child.stderr:
            if " step 1/" in told:
                child.kill()
                seconds = time.perf_counter() - start
                break
    if seconds is None:
        raise SystemExit(f"error: no first step; the last line was: {told.strip()}")
    return seconds, children_cpu_seconds() - cpu_start


def children_cpu_seconds() -> float:
    """CPU seconds of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
