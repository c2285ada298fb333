# SPDX-License-Identifier: Apache-2.0
"""Bigger models are better (Vaswani et al. 2017, table 3, rows C).

    transformer_jax claim wider_model --workdir=runs/claims

As in the paper, the model has twice the width, and the feed-forward layer its inner width.
"""


def get_claim():
    return dict(
        statement="A model of width 128 reaches a lower loss than one of width 64.",
        config="tiny_shakespeare_claims",
        rows={"width 128": {"model.d_model": 128}, "base": {}},
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2",
    )
