# SPDX-License-Identifier: Apache-2.0
"""Pre-norm trains without warm-up where post-norm does not (Xiong et al. 2020).

    transformer_jax claim norm_without_warmup --workdir=runs/claims/norm_without_warmup

The learning rate is 0.003 from the first step to the last.
"""


def get_claim():
    return dict(
        statement="Without warm-up, six pre-norm layers reach a lower loss than post-norm layers.",
        config="grammar_tiny",
        base={
            "model.num_encoder_layers": 6,
            "model.num_decoder_layers": 6,
            "optimizer.schedule": "constant",
            "optimizer.warmup_steps": 1,
        },
        rows={
            "pre-norm": {"model.norm_placement": "pre"},
            "post-norm": {"model.norm_placement": "post"},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    )
