# SPDX-License-Identifier: Apache-2.0
"""Warm-up with the norm before and after the sublayer.

    python -m transformer_jax sweep --sweep=experiments/sweeps/warmup.py --workdir=runs/warmup

Xiong et al. (2020): with the norm after the residual sum, gradients near the output are large at
first, and Adam fails without warm-up; with the norm before the sublayer it does not. Each placement
is trained with a warm-up of one step, a short and a long one, at the same peak learning rate.
"""

PLACEMENTS = ("post", "pre")
UPDATES = (1, 100, 1000)


def get_sweep():
    rows = {
        f"{placement}, {updates} updates": {
            "model.norm_placement": placement,
            "optimizer.warmup_steps": updates,
        }
        for placement in PLACEMENTS
        for updates in UPDATES
    }
    base = {"optimizer.schedule": "constant", "optimizer.learning_rate": 1e-3}
    return dict(
        config="configs/multi30k_en_de_tiny.py",
        base=base,
        rows=rows,
        seeds=3,
        metrics=["loss", "bleu"],
    )
