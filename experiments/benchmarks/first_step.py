# SPDX-License-Identifier: Apache-2.0
"""Measures the time from starting `train` to its first step, with an empty and a warm cache.

    python experiments/benchmarks/first_step.py --config=configs/quickstart.py --rounds=3

Each round has its own compilation cache and two new workdirs: the first start compiles, the second
loads the compiled programs. The time ends at the line with the first step's metrics; tokenizer and
data are included. Prints one JSON object, medians in seconds.
"""

import argparse
import json
import os
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
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, found in seconds.items():
                found.append(
                    round(to_the_first_step(args.config, overrides, Path(folder), name), 1)
                )
                print(f"{name}: {found[-1]} s", file=sys.stderr)
    print(json.dumps({name: statistics.median(found) for name, found in seconds.items()}))
    return 0


def to_the_first_step(config: str, overrides: list[str], folder: Path, name: str) -> float:
    """Seconds to the first step of a new run, which is then killed. The cache is in `folder`."""
    words = [f"--config={config}", f"--workdir={folder / name}", "--config.logging.every_steps=1"]
    command = [sys.executable, "-m", "transformer_jax", "train", *words, *overrides]
    start = time.perf_counter()
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
                return time.perf_counter() - start
    raise SystemExit(f"error: no first step; the last line was: {told.strip()}")


if __name__ == "__main__":
    sys.exit(main())
