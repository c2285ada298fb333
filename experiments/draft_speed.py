# SPDX-License-Identifier: Apache-2.0
"""Compares the time of a search with and without a draft, on lines of a file.

    python -m experiments.draft_speed --workdir=RUN --draft=DRAFT --lines=FILE --batch_size=1

DRAFT is the workdir of a smaller run, or "lookup". The two searches alternate, after one that is
not measured, which compiles them. Prints one JSON object: seconds of each (medians), the speed-up,
the tokens that a step found, the share of proposals accepted, and the share of outputs that are the
same. In greedy search this is 1 with float32 products; in bfloat16, rounding depends on the number
of rows.
"""

import argparse
import json
import statistics
import time
from itertools import islice
from pathlib import Path

import transformer_jax as tj
from transformer_jax.runs.run import decode_options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, metavar="RUN")
    parser.add_argument("--draft", required=True, metavar="DRAFT")
    parser.add_argument("--lines", required=True, type=Path, metavar="FILE")
    parser.add_argument("--num_lines", type=int, default=100, metavar="N")
    parser.add_argument("--draft_length", type=int, default=4, metavar="N")
    parser.add_argument("--batch_size", type=int, default=1, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="X", help="sample; without: greedy")
    parser.add_argument("--max_extra_length", type=int, default=50, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    args = parser.parse_args()
    run = tj.load(args.workdir)
    with args.lines.open() as file:
        lines = [line.rstrip("\n") for line in islice(file, args.num_lines)]
    search = {"temperature": args.temperature} if args.temperature else {"search": "greedy"}
    options = search | {"batch_size": args.batch_size, "max_extra_length": args.max_extra_length}
    drafted = options | {"draft": args.draft, "draft_length": args.draft_length}
    kinds = {"plain": options, "drafted": drafted}
    seconds = {kind: list[float]() for kind in kinds}
    outputs = {kind: run.predict(lines, **given) for kind, given in kinds.items()}
    for _ in range(args.rounds):
        for kind, given in kinds.items():
            start = time.perf_counter()
            run.predict(lines, **given)
            seconds[kind].append(time.perf_counter() - start)
    decode = decode_options(run.settings.decode, run.task, "predict", drafted)
    model = run.with_decoding(decode)[0].model
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    same = [a == b for a, b in zip(*outputs.values(), strict=True)]
    found = {
        **{kind: round(median, 2) for kind, median in medians.items()},
        "speed_up": round(medians["plain"] / medians["drafted"], 2),
        "tokens_per_step": round(model.tokens_per_step, 2),
        "accepted": round(model.acceptance, 3),
        "same_outputs": sum(same) / len(same),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
