"""Where should the norm stand, and which one?

    python -m transformer_jax sweep --sweep=experiments/norms.py --workdir=runs/norms

LayerNorm behind the sum as in the paper, before the sublayer (Xiong et al. 2020) or at both places
(Ding et al. 2021), and RMSNorm (Zhang and Sennrich 2019) in its stead, all else equal.
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
