# SPDX-License-Identifier: Apache-2.0
"""Placement and kind of the norm.

    python -m transformer_jax sweep --sweep=experiments/sweeps/norms.py --workdir=runs/norms

LayerNorm after the residual sum as in the paper, before the sublayer (Xiong et al. 2020), or before
and after it (Ding et al. 2021); and RMSNorm (Zhang and Sennrich 2019) in the same places.
Everything else is equal.
"""

PLACEMENTS = ("post", "pre", "sandwich")
NORMS = ("layer", "rms")


def get_sweep():
    rows = {
        f"{placement}, {norm}": {"model.norm_placement": placement, "model.norm": norm}
        for placement in PLACEMENTS
        for norm in NORMS
    }
    return dict(
        config="configs/multi30k_en_de_tiny.py", rows=rows, seeds=3, metrics=["loss", "bleu"]
    )
