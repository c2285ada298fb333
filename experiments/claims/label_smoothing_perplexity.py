# SPDX-License-Identifier: Apache-2.0
"""Label smoothing hurts perplexity (Vaswani et al. 2017, section 5.4 and table 3, rows D).

    transformer_jax claim label_smoothing_perplexity --workdir=runs/claims

The paper's translator has a perplexity of 4.92 with a smoothing of 0.1, and 4.67 without: losses of
1.593 and 1.541 nats. Here a language model; the loss of validation is not smoothed.
"""


def get_claim():
    return dict(
        statement="A language model trained without label smoothing has a lower loss than one with "
        "it.",
        config="tiny_shakespeare_claims",
        rows={"base": {}, "smoothed": {"train.label_smoothing": 0.1}},
        smallest=0.02,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 5.4",
        published={"perplexity": (4.67, 4.92)},
    )
