# SPDX-License-Identifier: Apache-2.0
"""The length of warm-up matters: too short a one ends at a higher loss (Xiong et al. 2020).

    transformer_jax claim longer_warmup --workdir=runs/claims/longer_warmup

The paper compares 500 steps with 4,000, at the same peak learning rate; here it is an eighth too.
"""


def get_claim():
    return dict(
        statement="Six post-norm layers reach a lower loss with 200 steps of warm-up than with 25.",
        config="grammar_tiny",
        base={
            "model.num_encoder_layers": 6,
            "model.num_decoder_layers": 6,
            "model.norm_placement": "post",
            "optimizer.schedule": "constant",
        },
        rows={
            "200 steps": {"optimizer.warmup_steps": 200},
            "25 steps": {"optimizer.warmup_steps": 25},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, section 3.2",
    )
