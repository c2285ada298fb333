# SPDX-License-Identifier: Apache-2.0
"""Tests that workers on one sweep folder, some of them killed, train each row once.

python -m tests.campaigns.faults.kill_workers --bucket=s3 --workdir=runs/kill_workers --kills=3

Several processes work on a tiny sweep in a bucket of an emulator on loopback, each with copies of
its own, as on machines of their own; without --bucket on a disk. Some are killed (SIGKILL) at
random moments after the first steps of a row. Prints one JSON object, with the row and the last
recorded step of each kill; exit status 1 if the table differs from that of one worker, a run has a
step twice, a finished row was measured again, or a worker that was not killed failed.
"""

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.campaigns.faults.emulators import emulator
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.lab.sweeps.shared_folder import folder_name

sys.path.insert(0, str(Path(__file__).parent))  # the other campaigns of sweeps are scripts
from kill_sweep import repeated_steps, run, table, write_sweep
from tiny_runs import QUICKEST

ROWS = {f"width {width}": {"model.d_ff": width} for width in (16, 24, 32, 40, 48, 56, 64, 72)}
SECONDS = 3600  # until a worker counts as hanging


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds all but the bucket")
    parser.add_argument("--bucket", choices=("s3", "gs"), help="default: a folder on the disk")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=60, help="longest time from one kill to the next"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    args = parser.parse_args()
    root = args.workdir.absolute()
    sweep = write_sweep(root, ROWS)
    os.environ |= {
        "XLA_FLAGS": QUICKEST,
        "JAX_COMPILATION_CACHE_DIR": str(root / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    run(sweep, root / "alone")
    with contextlib.ExitStack() as held:
        address = str(root / "shared")
        if args.bucket:
            cloud = held.enter_context(emulator(args.bucket))
            os.environ |= cloud.environ
            address = f"{cloud.address}/sweep"
        found = campaign(sweep, address, root, args)
        if args.bucket:
            download(address, root / "shared")
    found["wrong"] += repeated_steps(root / "shared")
    if table(root / "shared") != table(root / "alone"):
        found["wrong"].append("the table differs from that of one worker")
    print(json.dumps(found))
    return int(bool(found["wrong"]))


def campaign(sweep: Path, address: str, root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Starts the workers and kills some that train a row; returns how they ended."""
    workers = [start(sweep, address, root / f"machine_{n}") for n in range(args.workers)]
    rng, began = random.Random(args.seed), time.monotonic()
    results, wrong, killed = dict[str, str](), list[str](), dict[int, tuple[str, int]]()
    due = began + rng.uniform(0, args.seconds)
    while any(worker.poll() is None for worker in workers):
        now = versions(address)
        again = [name for name in results.keys() & now if results[name] != now[name]]
        wrong += [f"{name} was measured again" for name in again]
        results |= now
        if time.monotonic() > began + SECONDS:
            raise SystemExit("the workers have not ended")
        held = {
            number: (row, step)
            for number, worker in enumerate(workers)
            if worker.poll() is None and (row := last_row(root / f"machine_{number}.log"))
            if not any(folder_name(row) in name for name in results)
            if (step := last_step(root, number, row))
        }
        if held and len(killed) < args.kills and time.monotonic() >= due:
            victim = rng.choice(sorted(held))
            workers[victim].kill()
            killed[victim] = held[victim]
            due = time.monotonic() + rng.uniform(0, args.seconds)
        time.sleep(0.5)
    for number, worker in enumerate(workers):
        if number not in killed and worker.returncode:
            log = (root / f"machine_{number}.log").read_text()
            wrong.append(f"worker {number} ended with status {worker.returncode}: {log[-500:]}")
    return {
        "place": address if "://" in address else "disk",
        "workers": len(workers),
        "killed_in": list(killed.values()),
        "rows": len(results),
        "seconds": round(time.monotonic() - began),
        "wrong": wrong,
    }


def last_row(log: Path) -> str | None:
    """Name of the row that a worker has claimed last."""
    found = re.findall(r"row \d+ of \d+: (.+)", log.read_text())
    return found[-1] if found else None


def last_step(root: Path, number: int, row: str) -> int:
    """Last step that is recorded of a row where a worker trains it; 0: none."""
    copies = (root / f"machine_{number}" / "transformer_jax" / "workdirs").glob("*/files/*")
    folders = [path for path in (*copies, *(root / "shared").glob("*")) if path.is_dir()]
    records = [
        line
        for folder in folders
        if folder.name == folder_name(row)
        for path in folder.glob("**/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    return max((int(step) for step in re.findall(r'"step": ?(\d+)', " ".join(records))), default=0)


def start(sweep: Path, address: str, machine: Path) -> "subprocess.Popen[bytes]":
    """Starts a worker with a cache folder of its own."""
    words = [sys.executable, "-m", "transformer_jax", "sweep", f"--sweep={sweep}"]
    with machine.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [*words, f"--workdir={address}"],
            env=os.environ | {"XDG_CACHE_HOME": str(machine)},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def versions(address: str) -> dict[str, str]:
    """Version of each row's result."""
    if "://" not in address:
        found = Path(address).glob("*/result.json")
        return {path.parent.name: str(path.stat().st_mtime_ns) for path in found}
    entries = Bucket(address).entries().items()
    return {name: entry.version for name, entry in entries if name.endswith("/result.json")}


def download(address: str, folder: Path) -> None:
    """Downloads tables and records."""
    bucket = Bucket(address)
    for name in bucket.entries():
        if name == "table.csv" or name.endswith("/metrics.jsonl"):
            bucket.download(name, folder / name)


if __name__ == "__main__":
    sys.exit(main())
