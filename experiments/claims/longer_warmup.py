# SPDX-License-Identifier: Apache-2.0
"""The length of warm-up matters: too short a one ends at a higher loss (Xiong et al. 2020).

    transformer_jax claim longer_warmup --workdir=runs/claims

The paper compares 500 steps with 4,000, at the same peak learning rate.
"""

from norm_without_warmup import BASE, ROWS


def get_claim():
    return dict(
        statement="Six post-norm layers reach a lower loss with 100 steps of warm-up than with 10.",
        config="tiny_shakespeare_claims",
        base=BASE,
        rows={
            name: ROWS[name] for name in ("post-norm, warm-up of 100", "post-norm, warm-up of 10")
        },
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, section 3",
    )
