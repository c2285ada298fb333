# SPDX-License-Identifier: Apache-2.0
"""The rest of a text after its beginning, with decoders that start from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_continue.py \\
        --workdir=runs/continue --config.data.dir=GUTENBERG
"""

from bodies import PREFIX, SIZES, starts

STEPS = 300


def get_sweep():
    base = SIZES | PREFIX
    base |= {
        "task.objective": "prefix_lm",
        "data.name": "gutenberg",
        "data.max_length": 64,
        "train.tokens_per_batch": 4096,
        "train.num_steps": STEPS,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup_steps": 50,
        "optimizer.decay_steps": STEPS,
        "eval.every_steps": STEPS,
    }
    rows = {row: start for row, start in starts().items() if "decoder" in row or "causal" in row}
    return dict(config="configs/t5_cpu.py", base=base, rows=rows, seeds=3, metrics=["loss"])
