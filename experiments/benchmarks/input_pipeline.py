# SPDX-License-Identifier: Apache-2.0
"""Measures the throughput of the input pipeline without a model, and its CPU time.

    python experiments/benchmarks/input_pipeline.py --config=configs/multi30k_en_de.py \\
        --workers=0,1,2

Trains the config's tokenizer, then reads, tokenizes and packs batches as in training and discards
them, with a thread (0) and with worker processes in turn. Set config fields as for `train`. Prints
a JSON object per number of workers; padding does not count. On a busy machine `cpu_s_per_million`
says more than `tokens_per_s`: CPU seconds of the workers and of this process per million tokens.
Start-up is excluded and reported separately.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import active_children
from pathlib import Path

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.sources import open_split
from transformer_jax.runs import build
from transformer_jax.runs.config import override, read_settings
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runtime.startup import collect_garbage_rarely
from transformer_jax.tokenization import load_tokenizers

WARM_UP = 20  # at least this many batches, more than are packed ahead


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--workers", default="0", help="numbers of worker processes, as 0,1,2")
    parser.add_argument("--rounds", type=int, default=1, help="how often to measure each")
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    log_to_stderr()
    collect_garbage_rarely()  # as the command line does
    settings = read_settings(tj.config(args.config, fields))
    examples = open_split(settings.data, "train")
    with tempfile.TemporaryDirectory() as folder:
        build_tokenizers(settings, Path(folder) / "tokenizer", examples)
        tokenizers = load_tokenizers(Path(folder) / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    for num_workers in [int(number) for number in args.workers.split(",")] * args.rounds:
        start = time.perf_counter()
        batches = build.batches_of(
            override(settings, {"data.num_workers": num_workers}),
            task,
            examples,
            build.batch_rows(settings, task),
        )
        next(batches)
        found = {"workers": num_workers, "start_s": round(time.perf_counter() - start, 1)}
        print(json.dumps(found | measured(batches, task.read, args.batches)), flush=True)
        batches.close()
    return 0


def measured(batches: TrainBatches, read: Sequence[str], count: int) -> dict[str, float]:
    """Returns tokens per second, and CPU seconds per million tokens.

    Args:
      batches: some are taken first, until the pipeline had to pack: then as much is packed ahead as
        at the end.
      read: features whose tokens count.
      count: number of batches to measure, at least.
    """
    take(batches, read, WARM_UP)
    take_to_packing(batches, read)
    start, ours, theirs = time.perf_counter(), time.process_time(), workers_time()
    tokens = take(batches, read, count) + take_to_packing(batches, read)
    ours, theirs = time.process_time() - ours, workers_time() - theirs
    return {
        "tokens": tokens,
        "tokens_per_s": round(tokens / (time.perf_counter() - start)),
        "cpu_s_per_million": round(1e6 * theirs / tokens, 3),
        "main_cpu_s_per_million": round(1e6 * ours / tokens, 3),
    }


def take(batches: TrainBatches, read: Sequence[str], count: int) -> int:
    """Tokens of the next `count` batches."""
    return sum(
        int((batch[f"{feature}_segment_ids"] > 0).sum())
        for batch in (next(batches) for _ in range(count))
        for feature in read
    )


def take_to_packing(batches: TrainBatches, read: Sequence[str]) -> int:
    """Tokens of the batches up to the first one of new groups."""
    seen, tokens = batches.seen, 0
    while batches.seen == seen:
        tokens += take(batches, read, 1)
    return tokens


def workers_time() -> float:
    """CPU seconds of the worker processes so far, from /proc."""
    seconds = 0.0
    for worker in active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / 100  # user and system, in ticks
    return seconds


if __name__ == "__main__":
    sys.exit(main())
