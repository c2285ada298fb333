# SPDX-License-Identifier: Apache-2.0
"""LayerNorm suits a Transformer better than BatchNorm (Shen et al. 2020).

    transformer_jax claim layer_or_batch_norm --workdir=runs/claims

BatchNorm takes mean and variance over the real tokens of a batch, and averages of them over the
last updates at validation.
"""


def get_claim():
    return dict(
        statement="With LayerNorm a Transformer reaches a lower loss than with BatchNorm.",
        config="tiny_shakespeare_claims",
        rows={
            "base": {},
            "BatchNorm": {"model.norm": "batch"},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Shen et al. 2020, PowerNorm; d2l.ai, chapter on the Transformer",
    )
