# SPDX-License-Identifier: Apache-2.0
"""A post-norm Transformer needs warm-up (Popel and Bojar 2018, Xiong et al. 2020).

    transformer_jax claim warmup_of_post_norm --workdir=runs/claims/warmup_of_post_norm

The learning rate is 0.003, after a warm-up of 100 of 400 steps or from the first step.
"""


def get_claim():
    return dict(
        statement="Six post-norm layers reach a lower loss with 100 steps of warm-up than without.",
        config="grammar_tiny",
        base={
            "model.num_encoder_layers": 6,
            "model.num_decoder_layers": 6,
            "model.norm_placement": "post",
            "optimizer.schedule": "constant",
        },
        rows={
            "warm-up": {"optimizer.warmup_steps": 100},
            "no warm-up": {"optimizer.warmup_steps": 1},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, section 3.2; Popel and Bojar 2018, Training Tips, section 4.6",
    )
