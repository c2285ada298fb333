# SPDX-License-Identifier: Apache-2.0
"""Dropout is very helpful against over-fitting (Vaswani et al. 2017, section 6.2).

    transformer_jax claim dropout_of_small_data --workdir=runs/claims

The characters are read 40 times; validation is on the last tenth of Tiny Shakespeare.
"""


def get_claim():
    return dict(
        statement="On 5,000 characters, dropout of 0.1 reaches a lower loss than no dropout.",
        config="tiny_shakespeare_claims",
        rows={
            "dropout": {"data.num_train_tokens": 5000, "model.dropout_rate": 0.1},
            "no dropout": {"data.num_train_tokens": 5000},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2; Srivastava et al. 2014",
        published={"perplexity": (4.92, 5.77), "bleu": (25.8, 24.6)},
    )
