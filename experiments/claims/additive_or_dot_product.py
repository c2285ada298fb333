# SPDX-License-Identifier: Apache-2.0
"""Additive attention is slightly better than multiplicative attention (Britz et al. 2017).

    transformer_jax claim additive_or_dot_product --workdir=runs/claims

They compared the two in recurrent translators; here they are the self-attention of a language
model whose heads have d_k = 16. Vaswani et al. (2017) state that both perform similarly at a small
d_k.
"""


def get_claim():
    return dict(
        statement="Additive self-attention reaches a lower loss than scaled dot products.",
        config="tiny_shakespeare_claims",
        rows={
            "additive": {"model.attention_layer": "additive"},
            "base": {},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Britz et al. 2017, Massive Exploration of NMT Architectures",
    )
