"""Time to compile the training step at several depths, with scanned layers and unrolled.

    python experiments/benchmarks/compile_depth.py --layers=12,24,48

A narrow decoder (`d_model` 64), whose products cost nothing: what grows is the program. Nothing is
cached. Prints a row for each depth: seconds to trace the step and to compile it, of the processor
and not of the clock, and the instructions of the compiled program.
"""

import argparse
import sys
import time

import jax

from transformer_jax.runs import build
from transformer_jax.runs.config import complete_config, read_settings

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
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    step_seconds(1, scan=True)  # what JAX loads once
    print("| layers | scanned | traced, s | compiled, s | instructions |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for scan in [True, False] if args.unrolled else [True]:
        for layers in map(int, args.layers.split(",")):
            traced, compiled, instructions = step_seconds(layers, scan)
            told = "yes" if scan else "no"
            print(f"| {layers} | {told} | {traced:.1f} | {compiled:.1f} | {instructions:,} |")
    return 0


def step_seconds(layers: int, scan: bool) -> tuple[float, float, int]:
    """Processor seconds to trace and to compile the step, and how long the program is."""
    depth = {"num_layers": layers, "scan_layers": scan}
    config = complete_config(CONFIG | {"model": CONFIG["model"] | depth}, "the benchmark")
    settings = read_settings(config)
    task = build.build_task(settings, {"text": 256}, tokenizers=None)
    engine = build.build_engine(settings)
    _, step, init_state = build.build_training(settings, task, engine)
    state = build.abstract_state(settings, init_state, engine.mesh)
    batch = build.batch_shapes(task.lengths, build.batch_rows(settings, task))
    start = time.process_time()
    compiling = engine.compile(step, state, batch)
    traced = time.process_time()
    text = compiling.executable.as_text()
    compiled = time.process_time()
    return traced - start, compiled - traced, text.count(" = ")


if __name__ == "__main__":
    sys.exit(main())
