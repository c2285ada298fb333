# SPDX-License-Identifier: Apache-2.0
"""Measures the works of experiments/results/speed.md on this machine and prints a table.

    make benchmarks [PEERS=FILE]
    python -m experiments.benchmarks.speed_table --rounds=2 --works=train [--peers=FILE]

Rows: training and searches at the sizes of speed.md, the input pipeline, and the seconds from
`train` to the first step. FILE names a program to compare with, one work a line, as in

    train base: PEER/bin/python train_step.py --model marian --size base

Its last line of output must be a JSON object with `tokens_per_s`. It alternates with ours, so that
other work on the machine slows both. A work may have several peers, each on a line of its own.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmarks.side_by_side import CommandError, compare, run

ROOT = Path(__file__).parents[2]
PYTHON = shlex.quote(sys.executable)
MEASURE = f"{PYTHON} -m transformer_jax benchmark"
BASE = "--config=wmt14_en_de_base --config.tokenizer.vocab_size=32000"
SMALL = (
    "--config=wmt14_en_de_base --config.tokenizer.vocab_size=8000 --config.model.d_model=256 "
    "--config.model.d_ff=1024 --config.model.num_heads=4 --config.model.num_encoder_layers=3 "
    "--config.model.num_decoder_layers=3"
)
CHAR = "--config=tiny_shakespeare --batch_size=64 --config.tokenizer.vocab_size=65"
GPT2 = (
    "--config=gpt2_124m --source_length=32 --output_length=64 --beam_size=1 --steps=3 "
    "--config.decode.temperature=none --config.decode.top_k=none --config.decode.weights=int8"
)
INT8 = "--config.decode.weights=int8 --steps=3"
WORKS = {
    "train base": f"{MEASURE} train {BASE} --steps=6",
    "train small": f"{MEASURE} train {SMALL} --batch_size=128 --source_length=24 "
    "--target_length=24 --steps=8",
    "train char GPT": f"{MEASURE} train {CHAR} --steps=4",
    "search base, beam 4": f"{MEASURE} decode {BASE} --beam_size=4 {INT8}",
    "search base, greedy": f"{MEASURE} decode {BASE} --beam_size=1 {INT8}",
    "search small, greedy": f"{MEASURE} decode {SMALL} --beam_size=1 {INT8}",
    "generate GPT-2, 1 row": f"{MEASURE} decode {GPT2} --batch_size=1",
    "generate GPT-2, 16 rows": f"{MEASURE} decode {GPT2} --batch_size=16",
    "input pipeline": f"{PYTHON} {ROOT}/experiments/benchmarks/input_pipeline.py "
    "--config=quickstart",
}
"""Name -> a command whose last line of output is a JSON object with `tokens_per_s`."""
FIRST_STEP = "first step"
START = f"{PYTHON} {ROOT}/experiments/benchmarks/first_step.py --config=quickstart --rounds=1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--works", default="", metavar="REGEX", help="only rows with a match")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="programs to compare with")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="runs of each program")
    args = parser.parse_args()
    try:
        for line in table(args.works, read_peers(args.peers), args.rounds):
            print(line, flush=True)
    except (CommandError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def read_peers(path: Path | None) -> dict[str, list[str]]:
    """Commands of peers by work; CommandError if a line names no work."""
    peers: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path else ():
        name, _, command = map(str.strip, line.partition(":"))
        if line.strip() and (name not in WORKS or not command):
            raise CommandError(f"{path}: {line!r} is not WORK: COMMAND, with one of {[*WORKS]}")
        if command:
            peers.setdefault(name, []).append(command)
    return peers


def table(pattern: str, peers: dict[str, list[str]], rounds: int) -> Iterator[str]:
    """Rows of the table in Markdown, each after its measurement."""
    yield "| work | tokens/s | MB | peer | tokens/s | MB | ratio |"
    yield "| --- | ---: | ---: | --- | ---: | ---: | ---: |"
    for name in [name for name in WORKS if re.search(pattern, name)]:
        commands = [WORKS[name], *peers.get(name, ())]
        runs = [[] for _ in commands]
        for _ in range(rounds):
            for command, found in zip(commands, runs, strict=True):
                found.append(run(command))
        report = compare(commands, runs)
        ours = f"| {name} | {report['ours']['tokens_per_s']:,.0f} | {report['ours']['memory_mb']:,}"
        for peer in report["peers"] or [None]:
            yield f"{ours} | {_peer_cells(peer)} |" if peer else f"{ours} | | | | |"
    if re.search(pattern, FIRST_STEP):
        found = subprocess.run(shlex.split(START), stdout=subprocess.PIPE, text=True, check=False)
        if found.returncode:
            raise CommandError(f"status {found.returncode} from: {START}")
        seconds = json.loads(found.stdout)
        yield f"\nFrom `train --config=quickstart` to the first step: {seconds['cold']} s; with"
        yield f"the compiled programs of an earlier run {seconds['warm']} s."


def _peer_cells(peer: dict) -> str:
    cells = (f"`{peer['command']}`", f"{peer['tokens_per_s']:,.0f}", f"{peer['memory_mb']:,}")
    return " | ".join((*cells, f"{peer['ratio']:.2f}"))


if __name__ == "__main__":
    sys.exit(main())
