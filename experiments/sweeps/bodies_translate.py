# SPDX-License-Identifier: Apache-2.0
"""Translation with a tenth of Multi30k: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_translate.py \\
        --workdir=runs/translate --config.data.dir=MULTI30K

Rows from scratch have the tokenizer and the sizes of the others. Rows of three times the steps are
evaluated every 600 steps, so that the best checkpoint counts.
"""

from bodies import SIZES, STACKS, starts

STEPS = 1200


def get_sweep():
    rows = starts()
    long = {
        "train.num_steps": 3 * STEPS,
        "optimizer.decay_steps": 3 * STEPS,
        "eval.every_steps": STEPS // 2,
    }
    for row in ("from scratch", "from spans", "from causal"):
        rows[f"{row}, three times the steps"] = rows[row] | long
    base = {
        **SIZES,
        **STACKS,
        "model.architecture": "encoder_decoder",  # not that of the body
        "model.dropout_rate": 0.2,
        "model.positions": "rotary",
        "data.num_train_examples": 2900,
        "train.tokens_per_batch": 1024,
        "train.num_steps": STEPS,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 100,
        "optimizer.decay_steps": STEPS,
        "eval.every_steps": STEPS,
        "eval.num_examples": 300,
        "decode.beam_size": 1,
    }
    config = "configs/multi30k_en_de.py"
    return dict(config=config, base=base, rows=rows, seeds=3, metrics=["loss", "bleu"])
