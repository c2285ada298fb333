# SPDX-License-Identifier: Apache-2.0
"""Translation with a tenth of Multi30k: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_translate.py \\
        --workdir=runs/translate --config.data.dir=MULTI30K

Rows from scratch have the tokenizer and the sizes of the others, and are trained as long, twice as
long, and with equal FLOPs: three seeds of `EQUAL` steps have the FLOPs of the three seeds of "from
causal" and of the one body that these share.
"""

BODIES = "runs/bodies"  # the workdir of bodies.py
STEPS = 400
# A step has 8.8 GFLOP, products with parameters alone; the causal body took 33.4 TFLOP.
EQUAL = 1670


def get_rows():
    scratch = {"train.init_from": f"{BODIES}/untrained/seed_0"}
    rows = {
        f"from scratch, {steps} steps": scratch
        | {name: steps for name in ("train.num_steps", "eval.every_steps", "optimizer.decay_steps")}
        for steps in (EQUAL, 2 * STEPS, STEPS)
    }
    for body in ("causal", "spans", "masked"):
        rows[f"from {body}"] = {"train.init_from": f"{BODIES}/{body}/seed_0"}
    return rows


def get_sweep():
    base = {
        "model.architecture": "encoder_decoder",  # not that of the body
        "model.d_model": 128,
        "model.d_ff": 512,
        "model.num_encoder_layers": 2,
        "model.num_decoder_layers": 2,
        "model.dropout_rate": 0.2,
        "model.positions": "rotary",
        "data.num_train_examples": 2900,
        "train.tokens_per_batch": 1024,
        "train.num_steps": STEPS,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 100,
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
