# SPDX-License-Identifier: Apache-2.0
"""A single head is worse than several (Vaswani et al. 2017, table 3, rows A).

    transformer_jax claim one_head --workdir=runs/claims

The base has four heads. In the paper, 1, 4, 8, 16 and 32 heads of the same total width reach
perplexities of 5.29, 5.00, 4.92, 4.91 and 5.01.
"""


def get_claim():
    return dict(
        statement="Four heads of 16 features reach a lower loss than one head of 64.",
        config="tiny_shakespeare_claims",
        rows={
            "base": {},
            "one head": {"model.num_heads": 1},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2",
        published={"perplexity": (4.92, 5.29), "bleu": (25.8, 24.9)},
    )
