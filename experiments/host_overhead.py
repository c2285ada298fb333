# SPDX-License-Identifier: Apache-2.0
"""Measures the host's own time for a training step: the loop with a step that does nothing.

    python experiments/host_overhead.py --config=configs/wmt14_en_de_base.py --steps=300 \\
      --config.data.name=synthetic_en_de --config.tokenizer.vocab_size=2000 \\
      --config.model.d_model=64 --config.model.d_ff=128

The step takes and returns all arrays of the config's state, and reads one batch, which is ready.
What is left is dispatch, the sums, the records and the progress bar. The widths of the model do not
matter, only the number of its arrays. Set config fields as for `train`. Prints one JSON object:
times of a step in ms, of the clock and of the processor in the thread of the loop.
"""

import argparse
import contextlib
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.parallel.engines import CompiledStep
from transformer_jax.runs import build

WARM_UP = 20


class LastStepError(Exception):
    """All steps are measured."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=300)
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    log_to_stderr()
    never = 2 * (args.steps + WARM_UP)
    fields |= {"train.num_steps": never, "eval.every_steps": never, "checkpoint.every_steps": never}
    report = measure(tj.config(args.config, fields), args.steps)
    print(json.dumps({"devices": jax.device_count(), "steps": args.steps} | report))
    return 0


def measure(config: Any, steps: int) -> dict[str, Any]:
    """Trains `config` with an empty step; returns the number of arrays and summaries of times."""
    starts: list[tuple[float, float]] = []
    call = CompiledStep.__call__
    arrays = 0

    def timed(step: CompiledStep, state: Any, rows: Any) -> Any:
        nonlocal arrays
        if len(starts) > WARM_UP + steps:
            arrays = len(jax.tree.leaves((state, rows)))
            raise LastStepError
        starts.append((time.perf_counter(), time.thread_time()))
        return call(step, state, rows)

    @functools.cache
    def first_batch(batches: TrainBatches) -> Any:
        return next(batches._streams)  # without the thread that packs more

    with (
        tempfile.TemporaryDirectory() as workdir,
        mock.patch.object(build, "build_training", functools.partial(empty, build.build_training)),
        mock.patch.object(TrainBatches, "__next__", first_batch),
        mock.patch.object(TrainBatches, "start", lambda batches: None),
        mock.patch.object(CompiledStep, "__call__", timed),
        contextlib.suppress(LastStepError),
    ):
        tj.train(config, workdir)
    pairs = list(zip(starts[WARM_UP:], starts[WARM_UP + 1 :], strict=False))
    clock = [after[0] - before[0] for before, after in pairs]
    processor = [after[1] - before[1] for before, after in pairs]
    return {"arrays": arrays, "clock_ms": summary(clock), "processor_ms": summary(processor)}


def empty(build_training: Callable[..., tuple], *args: Any) -> tuple:
    """`build_training` with a step that leaves the state as it is and returns sums of one."""
    schedule, train_step, init_state = build_training(*args)

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        _, sums = jax.eval_shape(train_step, state, batch)
        return state, jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), sums)

    return schedule, step, init_state


def summary(seconds: list[float]) -> dict[str, float]:
    """Median, mean and the 99th percentile, in milliseconds."""
    last = statistics.quantiles(seconds, n=100)[-1]
    metrics = {"median": statistics.median(seconds), "mean": statistics.mean(seconds), "p99": last}
    return {name: round(1e3 * value, 3) for name, value in metrics.items()}


if __name__ == "__main__":
    sys.exit(main())
