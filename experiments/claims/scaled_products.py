# SPDX-License-Identifier: Apache-2.0
"""Products of queries and keys must be divided by sqrt(d_k) if d_k is large (Vaswani et al. 2017).

    transformer_jax claim scaled_products --workdir=runs/claims

One head of d_k = 64: at the start of training, unscaled products have a standard deviation of 8.
"""


def get_claim():
    return dict(
        statement="At d_k = 64, scaled products reach a lower loss than unscaled products.",
        config="tiny_shakespeare_claims",
        rows={
            "one head": {"model.num_heads": 1},
            "one head, unscaled": {"model.num_heads": 1, "model.attention_scale": 1.0},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 3.2.1",
    )
