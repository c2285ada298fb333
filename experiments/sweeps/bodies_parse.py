# SPDX-License-Identifier: Apache-2.0
"""Parsing of GUM: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_parse.py \\
        --workdir=runs/parse --config.data.dir=GUM
"""

from bodies import SIZES, STACKS, starts

STEPS = 1000


def get_sweep():
    base = {
        **SIZES,
        **STACKS,
        "model.tie_embeddings": "target",
        "train.tokens_per_batch": 2048,
        "train.num_steps": STEPS,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 100,
        "optimizer.decay_steps": STEPS,
        "eval.every_steps": STEPS,
        "eval.num_examples": 200,
        "decode.beam_size": 1,
    }
    rows = starts()
    long = {
        "train.num_steps": 3 * STEPS,
        "optimizer.decay_steps": 3 * STEPS,
        "eval.every_steps": STEPS,
    }
    for row in ("from scratch", "from spans", "from causal"):
        rows[f"{row}, half the rate"] = rows[row] | {"optimizer.learning_rate": 1e-3}
        rows[f"{row}, three times the steps"] = rows[row] | long
    config = "configs/parse_gum.py"
    return dict(config=config, base=base, rows=rows, seeds=3, metrics=["loss", "f1"])
