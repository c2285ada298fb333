# SPDX-License-Identifier: Apache-2.0
"""Runs programs in turn on one machine and compares their tokens per second.

    python experiments/benchmarks/side_by_side.py --rounds=3 \\
        --ours="python -m transformer_jax benchmark train --config=configs/wmt14_en_de_base.py" \\
        --peer="PEER/bin/python train_step.py --model marian --size base"

The last line that each command prints on stdout must be a JSON object with `tokens_per_s`. They run
in turn (ours, peer, ours, peer, ...), so that other work on the machine slows both; several peers
are possible. Prints one JSON object with each program's median, its runs and its highest memory in
MB, and for each peer the ratio of our median to the peer's.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from typing import Any


class CommandError(Exception):
    """A command failed, or did not print its tokens per second."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ours", required=True, metavar="COMMAND")
    parser.add_argument("--peer", required=True, metavar="COMMAND", action="append", dest="peers")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each")
    args = parser.parse_args()
    commands = [args.ours, *args.peers]
    runs = [[] for _ in commands]
    try:
        for _ in range(args.rounds):
            for command, found in zip(commands, runs, strict=True):
                found.append(run(command))
                print(f"{found[-1]['tokens_per_s']:.0f} tokens/s: {command}", file=sys.stderr)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(compare(commands, runs)))
    return 0


def run(command: str) -> dict[str, Any]:
    """Runs a command; returns its last JSON object, with its peak memory as `memory_mb`."""
    child = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise CommandError(f"status {child.returncode} from: {command}")
    try:
        found = json.loads(output.splitlines()[-1])
        return {**found, "tokens_per_s": float(found["tokens_per_s"])} | memory(usage.ru_maxrss)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CommandError(f"no JSON object with tokens_per_s at the end of: {command}") from error


def memory(maxrss: int) -> dict[str, int]:
    """Memory in MB; macOS reports bytes, other systems kibibytes."""
    return {"memory_mb": round(maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)}


def compare(commands: list[str], runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Builds the report; the first command is ours."""
    ours, *peers = map(summary, commands, runs)
    for peer in peers:
        peer["ratio"] = round(ours["tokens_per_s"] / peer["tokens_per_s"], 2)
    return {"ours": ours, "peers": peers}


def summary(command: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    each = [one["tokens_per_s"] for one in runs]
    memory = max(one["memory_mb"] for one in runs)
    found = {"tokens_per_s": statistics.median(each), "each": each, "memory_mb": memory}
    return {"command": command} | found


if __name__ == "__main__":
    sys.exit(main())
