# SPDX-License-Identifier: Apache-2.0
"""Checks this project on a GPU: right results, and where the time of a training step goes.

    python -m experiments.devices                     all parts, a quarter of an hour
    python -m experiments.devices base gpt2
    python -m experiments.devices --dry               tiny sizes, on a CPU

Each part is a process with a time limit. Results are JSON lines in OUT/results.jsonl, written as
soon as they are known; a table is printed last. Exit status 1 if a part failed. README.md in this
folder says what to read off.
"""

import argparse
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from experiments.devices.check import RESULTS, Check, run_here

PARTS = {  # group -> part -> seconds at most; the most valuable parts first
    "first": {"environment": 35, "attention": 60, "base": 240, "multi30k": 75, "gpt2": 80},
    "second": {"peer": 130, "tests": 110, "switches": 120, "decode": 60, "big": 50},
}
LIMITS = {part: seconds for parts in PARTS.values() for part, seconds in parts.items()}
DRY_LIMIT = 3600  # seconds: only a part that hangs takes as long
SHORTEST = 15  # seconds: nothing is learned in less, so a part is not started
# Programs of oneDNN cannot be kept.
DRY_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_disable_hlo_passes=onednn-contraction-rewriter,onednn-ops-rewriter"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    names = ", ".join(["all", *PARTS, *LIMITS])
    parser.add_argument("names", nargs="*", metavar="PART", help=f"of {names}; default: all")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a CPU, without the peer")
    parser.add_argument("--out", type=Path, default=Path("runs/devices"), metavar="DIR")
    parser.add_argument("--data", type=Path, metavar="DIR", help="instead of $TRANSFORMER_JAX_DATA")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="default: OUT/tokenizer")
    parser.add_argument("--seconds", type=float, metavar="N", help="for all parts together")
    args = parser.parse_args()
    parts = chosen_parts(args.names, args.dry)
    if not parts:
        parser.error(f"name parts, or groups of parts: {names}")
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / RESULTS
    size_before = results.stat().st_size if results.exists() else 0
    set_environment(args.dry, args.data, args.out)
    tokenizer = args.tokenizer or args.out / "tokenizer"
    if args.dry:  # another vocabulary
        tokenizer = args.out / "tokenizer_dry"
    end = time.monotonic() + (args.seconds or float("inf"))
    for part in parts:
        limit = min(DRY_LIMIT if args.dry else LIMITS[part], end - time.monotonic())
        check = Check(part, args.out, tokenizer, args.dry)
        if limit < SHORTEST:
            check.record("left out", reason="no time left")
        else:
            run_part(check, limit)
    with results.open() as file:
        file.seek(size_before)
        rows = [json.loads(line) for line in file]
    print_table(rows)
    return int(any(row.get("ok") is False for row in rows))


def chosen_parts(names: list[str], dry: bool) -> list[str]:
    """Parts to run, in their order; none if a name is unknown, or groups and parts are mixed."""
    if names and set(names) <= LIMITS.keys():
        return [part for part in LIMITS if part in names]
    if not set(names) <= PARTS.keys() | {"all"}:
        return []
    groups = PARTS if not names or "all" in names else names
    parts = [part for group in PARTS if group in groups for part in PARTS[group]]
    return [part for part in parts if not (dry and part == "peer")]


def set_environment(dry: bool, data: Path | None, out: Path) -> None:
    """Sets the environment of the parts' processes."""
    if data:
        os.environ["TRANSFORMER_JAX_DATA"] = str(data.absolute())
    if dry:  # tiny programs run for moments: nearly all time is compilation, of equal programs
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.setdefault("XLA_FLAGS", DRY_FLAGS)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(out.absolute() / "xla"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")


def run_part(check: Check, limit: float) -> None:
    """Runs a part in a process of its own, whose output goes to OUT/PART.log."""
    start = time.monotonic()
    cpu_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = multiprocessing.get_context("spawn").Process(target=run_here, args=(check,))
    process.start()
    problem = None
    try:
        process.join(limit)
    finally:  # after Ctrl-C, too
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.join()
            problem = f"stopped after {limit:.0f} s"
    if process.exitcode and not problem:
        problem = f"exit code {process.exitcode}"
    if problem:
        last_lines = check.log.read_text(errors="replace").strip().splitlines()[-3:]
        check.record("ended", ok=False, problem=problem, log=" | ".join(last_lines)[-600:])
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = cpu.ru_utime + cpu.ru_stime - cpu_before.ru_utime - cpu_before.ru_stime
    check.record("took", seconds=time.monotonic() - start, cpu_s=cpu_s)


def print_table(rows: list[dict[str, Any]]) -> None:
    print("\n| part | | |\n| --- | --- | --- |")
    for row in rows:
        part = row.pop("part")
        label = row.pop("label")
        values = ", ".join(f"{name} {value}" for name, value in row.items())
        print(f"| {part} | {label} | {values[:260]} |")


if __name__ == "__main__":
    sys.exit(main())
