# SPDX-License-Identifier: Apache-2.0
"""Dropout is very helpful against over-fitting (Vaswani et al. 2017, section 6.2).

    transformer_jax claim dropout_of_small_data --workdir=runs/claims

400 sentence pairs are read about 40 times; the validation sentences are others.
"""


def get_claim():
    return dict(
        statement="On 400 sentence pairs, dropout of 0.1 reaches a lower loss than no dropout.",
        config="grammar_tiny",
        rows={
            "400 pairs": {"data.synthetic_size": 400},
            "400 pairs, no dropout": {"data.synthetic_size": 400, "model.dropout_rate": 0.0},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2; Srivastava et al. 2014",
    )
