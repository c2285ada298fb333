# SPDX-License-Identifier: Apache-2.0
"""Products of queries and keys must be divided by sqrt(d_k) if d_k is large (Vaswani et al. 2017).

    transformer_jax claim scaled_products --workdir=runs/claims/scaled_products

One head of d_k = 128: at the start of training, unscaled products have a standard deviation of 11.
"""


def get_claim():
    return dict(
        statement="At d_k = 128, products divided by sqrt(d_k) reach a lower loss than unscaled.",
        config="grammar_tiny",
        base={"model.d_model": 128, "model.num_heads": 1},
        rows={"divided": {}, "unscaled": {"model.attention_scale": 1.0}},
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 3.2.1",
    )
