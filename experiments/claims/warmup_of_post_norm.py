# SPDX-License-Identifier: Apache-2.0
"""A post-norm Transformer needs warm-up (Popel and Bojar 2018, Xiong et al. 2020).

    transformer_jax claim warmup_of_post_norm --workdir=runs/claims

The learning rate is 0.004, from the first step or after half of the steps.
"""

from norm_without_warmup import BASE, ROWS


def get_claim():
    return dict(
        statement="Six post-norm layers reach a lower loss with 100 steps of warm-up than without.",
        config="tiny_shakespeare_claims",
        base=BASE,
        rows={
            name: ROWS[name] for name in ("post-norm, warm-up of 100", "post-norm, warm-up of 1")
        },
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, section 3; Popel and Bojar 2018",
    )
