# SPDX-License-Identifier: Apache-2.0
"""A Transformer does not train well without residual connections (He et al. 2016).

    transformer_jax claim residual_connections --workdir=runs/claims

Tutorials give two reasons: gradients vanish without them, and the layers lose the input itself.
"""


def get_claim():
    return dict(
        statement="With residual connections a Transformer reaches a lower loss than without.",
        config="tiny_shakespeare_claims",
        rows={
            "base": {},
            "no residuals": {"model.residual_connections": False},
        },
        smallest=0.1,
        looks=(4, 8),
        source="He et al. 2016; Dong et al. 2021, Attention Is Not All You Need",
    )
