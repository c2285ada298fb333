# SPDX-License-Identifier: Apache-2.0
"""Measures the time to compile the training step by depth, with scanned and unrolled layers.

    python experiments/benchmarks/compile_depth.py --layers=12,24,48

Uses a narrow decoder (`d_model` 64), so that only the size of the program matters, and no cache.
Prints a row per depth: CPU seconds to trace and to compile the step, and the number of instructions
in the compiled program; with `--state`, CPU seconds to create the first state, to stack its layers,
and to unstack them.
"""

import argparse
import itertools
import sys
import time
from typing import Any

import jax

from transformer_jax.parallel.first_state import create_state
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import Origin
from transformer_jax.tasks.losses import batch_shapes

CONFIG = {
    "task": {"name": "language_modeling"},
    "model": {"architecture": "decoder_only", "d_model": 64, "d_ff": 256, "num_heads": 4},
    "tokenizer": {"vocab_size": 256},
    "data": {"max_length": 64},
    "train": {"tokens_per_batch": 256},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--layers", default="12,24,48", metavar="N,...")
    parser.add_argument("--unrolled", action="store_true", help="unrolled layers too")
    parser.add_argument("--state", action="store_true", help="the first state, not the step")
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    if args.state:
        state_seconds(1)
        print(
            "| layers | first state, s | stacked, s | and back, s |\n| ---: | ---: | ---: | ---: |"
        )
        for layers in map(int, args.layers.split(",")):
            print("|", layers, *(f"| {seconds:.1f}" for seconds in state_seconds(layers)), "|")
        return 0
    step_seconds(1, scan=True)  # loads JAX's lazy parts
    print("| layers | scanned | traced, s | compiled, s | instructions |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for scan in [True, False] if args.unrolled else [True]:
        for layers in map(int, args.layers.split(",")):
            traced, compiled, instructions = step_seconds(layers, scan)
            told = "yes" if scan else "no"
            print(f"| {layers} | {told} | {traced:.1f} | {compiled:.1f} | {instructions:,} |")
    return 0


def step_seconds(layers: int, scan: bool) -> tuple[float, float, int]:
    """CPU seconds to trace and to compile the step, and the length of the program."""
    settings, task, engine, step, init_state = training(layers, scan)
    state = build.abstract_state(settings, init_state, engine.mesh)
    batch = batch_shapes(task.lengths, build.batch_rows(settings, task))
    start = time.process_time()
    compiling = engine.compile(step, state, batch)
    traced = time.process_time()
    text = compiling.executable.as_text()
    compiled = time.process_time()
    return traced - start, compiled - traced, text.count(" = ")


def state_seconds(layers: int) -> list[float]:
    """CPU seconds to create the first state, to stack its layers, and to unstack them."""
    settings, _, engine, _, init_state = training(layers, scan=True)
    abstract = build.abstract_state(settings, init_state, engine.mesh)
    times = [time.process_time()]
    state = create_state(init_state, settings.seed, abstract)
    for change in (lambda state: state, engine.from_portable, engine.to_portable):
        state = jax.block_until_ready(change(state))
        times.append(time.process_time())
    return [end - start for start, end in itertools.pairwise(times)]


def training(layers: int, scan: bool) -> tuple[Any, ...]:
    """Settings, task, engine, step and first state of a model with `layers` layers."""
    depth = {"num_layers": layers, "scan_layers": scan}
    config = CONFIG | {"model": CONFIG["model"] | depth}
    settings = read_settings(config, {}, Origin("loaded run", "the benchmark"))
    task = build.build_task(settings, {"text": 256}, tokenizers=None)
    engine = build.build_engine(settings)
    return settings, task, engine, *build.build_training(settings, task, engine)[1:]


if __name__ == "__main__":
    sys.exit(main())
