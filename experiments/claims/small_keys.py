# SPDX-License-Identifier: Apache-2.0
"""Smaller keys are worse (Vaswani et al. 2017, table 3, rows B).

    transformer_jax claim small_keys --workdir=runs/claims

As in the paper, keys have a quarter of the size of the base, whose head size is 16 here.
"""


def get_claim():
    return dict(
        statement="Keys of 16 features reach a lower loss than keys of 4.",
        config="tiny_shakespeare_claims",
        rows={"base": {}, "keys of 4": {"model.key_size": 4}},
        smallest=0.02,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2",
    )
