# SPDX-License-Identifier: Apache-2.0
"""Profiles a training step or a search: time by part of the model.

    python experiments/benchmarks/where_time_goes.py decode --config=configs/quickstart.py --rows=20

Runs `benchmark train` or `benchmark decode` with the same flags and traces one warm call. Each
operation counts for the module and primitive that it was compiled from; a fused operation counts
for the last of its parts. Times of parallel threads are summed. Prints a Markdown table.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from itertools import groupby
from pathlib import Path
from unittest import mock

import jax
from jax.profiler import ProfileData

from transformer_jax.cli.main import main as command_line

TRACED_CALL = 4  # the first call after the warm-up
_FRAMES = ("", "while", "body", "cond", "run", "jit", "closed_call")  # not parts of the model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("what", choices=["train", "decode"])
    parser.add_argument("--rows", type=int, default=25, metavar="N", help="rows of the table")
    args, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        program = traced(["benchmark", args.what, *flags], folder)
        times = operation_times(folder)
    parts, calls = sums_by_part(times, origins(program))
    total = sum(parts.values())
    print(f"| part | ms of {total:.0f} | share | operations |\n| --- | ---: | ---: | ---: |")
    for name, ms in parts.most_common(args.rows):
        print(f"| {name} | {ms:.1f} | {ms / total:.1%} | {calls[name]} |")
    return 0


def traced(words: list[str], folder: str) -> str:
    """Runs a command, traces one call of its compiled program and returns that program's text."""
    call, programs = jax.stages.Compiled.__call__, []

    def counted(compiled, *arguments):
        programs.append(compiled)
        if len(programs) != TRACED_CALL:
            return call(compiled, *arguments)
        with jax.profiler.trace(folder):
            return jax.block_until_ready(call(compiled, *arguments))

    with mock.patch.object(jax.stages.Compiled, "__call__", counted):
        if status := command_line(words):
            raise SystemExit(status)
    if len(programs) < TRACED_CALL:
        raise SystemExit("error: only training steps and searches of translations can be traced")
    return programs[TRACED_CALL - 1].as_text()


def operation_times(folder: str) -> dict[str, list[float]]:
    """Milliseconds of each execution of each operation in the trace."""
    (path,) = Path(folder).rglob("*.xplane.pb")
    times: dict[str, list[float]] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if any(name == "hlo_op" for name, _ in event.stats):
                    times.setdefault(event.name, []).append(event.duration_ns / 1e6)
    return times


def origins(program: str) -> dict[str, str]:
    """The module and primitive that each operation of a program was compiled from."""
    found = {}
    for line in program.splitlines():
        made = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
        name = re.search(r'op_name="([^"]*)"', line)
        if made:
            found[made[1]] = readable(name[1]) if name else re.sub(r"[.\d]+$", "", made[1])
    return found


def readable(op_name: str) -> str:
    """Module and primitive, from JAX's path of an operation, without the layer's number."""
    backward = "backward " if "transpose(" in op_name else ""
    path = re.sub(r"layer_\d+", "layer", op_name)
    path = re.sub(r"\w+\(([^()]*)\)", r"\1", path).replace("()", "")
    words = [word.split(".")[0] for word in path.split("/")]
    words = [word for word in words if word not in _FRAMES and "(" not in word]
    return backward + " ".join([word for word, _ in groupby(words)][-4:])


def sums_by_part(times, names) -> tuple[Counter, Counter]:
    """Milliseconds and number of operations of each part. Loops are left out, as their operations
    are counted."""
    parts, calls = Counter(), Counter()
    for operation, runs in times.items():
        if not operation.startswith(("while", "call", "conditional")):
            name = names.get(operation, operation)
            parts[name] += sum(runs)
            calls[name] += len(runs)
    return parts, calls


if __name__ == "__main__":
    sys.exit(main())
