# SPDX-License-Identifier: Apache-2.0
"""Pre-norm trains without warm-up where post-norm does not (Xiong et al. 2020).

    transformer_jax claim norm_without_warmup --workdir=runs/claims

The learning rate is 0.004 from the first step to the last.
"""

ROWS = {
    f"{placement}-norm, warm-up of {steps}": {
        "model.norm_placement": placement,
        "optimizer.warmup_steps": steps,
    }
    for placement, steps in [("pre", 1), ("post", 1), ("post", 10), ("post", 100)]
}
BASE = {
    "model.num_layers": 6,
    "model.scan_layers": True,
    "optimizer.schedule": "constant",
}


def get_claim():
    return dict(
        statement="Without warm-up, six pre-norm layers reach a lower loss than post-norm layers.",
        config="tiny_shakespeare_claims",
        base=BASE,
        rows={name: ROWS[name] for name in ("pre-norm, warm-up of 1", "post-norm, warm-up of 1")},
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    )
