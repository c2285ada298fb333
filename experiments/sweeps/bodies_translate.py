# SPDX-License-Identifier: Apache-2.0
"""Translation with a tenth of Multi30k: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_translate.py \\
        --workdir=runs/translate --config.data.dir=MULTI30K

The first row has the tokenizer and the sizes of the others, and is trained longer: its three seeds
together have the FLOPs of the three seeds of "from causal" and of the one body that these share.
The second row is trained as long as the others.
"""

BODIES = "runs/bodies"  # the workdir of bodies.py
STEPS = 150
# A step has 2.2 GFLOP, products with parameters alone; the causal body took 2.23 TFLOP.
STEPS_FROM_SCRATCH = 490


def get_rows():
    rows = {
        "from scratch, equal FLOPs": {
            "train.init_from": f"{BODIES}/untrained/seed_0",
            "train.num_steps": STEPS_FROM_SCRATCH,
            "eval.every_steps": STEPS_FROM_SCRATCH,
            "optimizer.decay_steps": STEPS_FROM_SCRATCH,
        },
        "from scratch, equal steps": {"train.init_from": f"{BODIES}/untrained/seed_0"},
    }
    for body in ("causal", "spans", "masked"):
        rows[f"from {body}"] = {"train.init_from": f"{BODIES}/{body}/seed_0"}
    return rows


def get_sweep():
    base = {
        "model.architecture": "encoder_decoder",  # not that of the body
        "model.d_model": 64,
        "model.d_ff": 256,
        "model.num_encoder_layers": 2,
        "model.num_decoder_layers": 2,
        "model.dropout_rate": 0.1,
        "model.positions": "rotary",
        "data.num_train_examples": 2900,
        "train.tokens_per_batch": 1024,
        "train.num_steps": STEPS,
        "optimizer.learning_rate": 4e-3,
        "optimizer.warmup_steps": 40,
        "optimizer.decay_steps": STEPS,
        "eval.every_steps": STEPS,
        "decode.beam_size": 1,
    }
    return dict(
        config="configs/multi30k_en_de.py",
        base=base,
        rows=get_rows(),
        seeds=3,
        metrics=["loss", "bleu"],
    )
