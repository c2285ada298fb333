"""Two programs in turn on one machine: which of them does more tokens a second?

    python experiments/benchmarks/side_by_side.py --rounds=3 \\
        --ours="python -m transformer_jax benchmark train --config=configs/wmt14_en_de_base.py" \\
        --peer="PEER/bin/python train_step.py --model marian --size base"

Each command's last line on stdout is a JSON object with `tokens_per_s`. They run ours, peer, ours,
peer and so on, so that what else the machine does strikes both. Prints one JSON object: the medians
and their ratio, each run's figure, and the highest memory of each program in MB.
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
    """A command failed, or printed no figure."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--ours", required=True, metavar="COMMAND")
    parser.add_argument("--peer", required=True, metavar="COMMAND")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each")
    args = parser.parse_args()
    commands = {"ours": args.ours, "peer": args.peer}
    runs = {name: [] for name in commands}
    try:
        for _ in range(args.rounds):
            for name, command in commands.items():
                runs[name].append(run(command))
                print(f"{name}: {runs[name][-1]['tokens_per_s']} tokens/s", file=sys.stderr)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(compare(runs) | commands))
    return 0


def run(command: str) -> dict[str, Any]:
    """What the command printed last, and `memory_mb`, its highest."""
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
    """In MB; macOS counts bytes, others kibibytes."""
    return {"memory_mb": round(maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)}


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    speeds = {name: [one["tokens_per_s"] for one in of_name] for name, of_name in runs.items()}
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    return {
        "ratio": round(medians["ours"] / medians["peer"], 2),
        "tokens_per_s": medians,
        "each": speeds,
        "memory_mb": {name: max(one["memory_mb"] for one in runs[name]) for name in runs},
    }


if __name__ == "__main__":
    sys.exit(main())
