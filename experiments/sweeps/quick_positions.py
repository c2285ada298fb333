# SPDX-License-Identifier: Apache-2.0
"""Does a small translator need positions, and which: minutes on two CPU cores, without a download.

    transformer_jax sweep --sweep=quick_positions --workdir=runs/quick_positions

The embedded task with a model of width 64; four encodings of positions, three seeds each. The
result is in experiments/results/ablations.md.
"""


def get_sweep():
    base = {
        "model.d_model": 64,
        "model.d_ff": 128,
        "train.num_steps": 500,
        "optimizer.decay_steps": 500,
        "optimizer.warmup_steps": 60,
        "eval.every_steps": 500,
        "checkpoint.every_steps": 500,
    }
    encodings = ("sinusoidal", "learned", "rotary", "none")
    rows = {name: {"model.positions": name} for name in encodings}
    return dict(config="quickstart", base=base, rows=rows, seeds=3, metrics=["loss", "bleu"])
