# SPDX-License-Identifier: Apache-2.0
"""The base model's step alone, in a loop, and with the input pipeline; its profile; its losses."""

import time
from pathlib import Path

from experiments.benchmarks.input_pipeline import measured
from experiments.devices.check import Check
from experiments.devices.steps import BASE, TINY_PAIRS, compare_with_plain, measure, time_loop
from transformer_jax.data.batches.pipeline import TrainBatches, train_batches
from transformer_jax.data.examples import Corpus
from transformer_jax.data.sets.public import TATOEBA
from transformer_jax.data.sources import open_split
from transformer_jax.runs import build
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import Settings
from transformer_jax.tokenization import Tokenizers
from transformer_jax.tools.benchmark import TrainingProgram


def run(check: Check) -> None:
    program, losses, alone_ms = measure(check, BASE)
    if check.dry or TATOEBA.local_folder().exists():
        for num_workers in (0, 1) if check.dry else (0, 4, 8):
            with check.attempt(f"pipeline, {num_workers} workers"):
                time_pipeline(check, program, num_workers, alone_ms)
    else:
        check.record("pipeline left out", reason=f"no folder {TATOEBA.local_folder()}")
    del program  # before the next one needs memory
    compare_with_plain(check, BASE, losses)


def time_pipeline(
    check: Check, program: TrainingProgram, num_workers: int, alone_ms: float
) -> None:
    """Records the speed of the input pipeline alone, and of the loop that it feeds."""
    start = time.perf_counter()
    batches = open_batches(check, num_workers)
    next(batches)
    start_s = time.perf_counter() - start
    speed = measured(batches, program.task.read, 5 if check.dry else 50)
    tokens = program.rows * sum(program.task.lengths.values())  # nearly: rows are 98% full
    ms_per_batch = 1e3 * tokens / speed["tokens_per_s"]
    label = f"pipeline alone, {num_workers} workers"
    check.record(label, **speed, ms_per_batch=ms_per_batch, start_s=start_s)
    time_loop(check, f"loop, {num_workers} workers", program, batches, alone_ms)
    batches.close()


def open_batches(check: Check, num_workers: int) -> TrainBatches:
    settings, examples, tokenizers = open_text(check.tokenizer, check.dry)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    return train_batches(
        task.prepare(examples, training=True),
        task.preprocess,
        lengths=task.lengths,
        rows=build.batch_rows(settings, task),
        seed=settings.order_seed,
        num_workers=num_workers,
    )


def open_text(tokenizer: Path, dry: bool = False) -> tuple[Settings, Corpus, Tokenizers]:
    """Base's settings for Tatoeba, its examples, and the tokenizers in a folder, which are trained
    if it does not exist."""
    changes = {"data.name": "tatoeba_en_de"}
    if dry:
        changes = TINY_PAIRS | {"data.name": "synthetic_en_de"}
    settings = resolve_file(BASE, changes)
    examples = open_split(settings.data, "train")
    return settings, examples, build_tokenizers(settings, tokenizer, examples)
