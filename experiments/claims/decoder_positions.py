# SPDX-License-Identifier: Apache-2.0
"""A causal decoder needs position encodings.

    transformer_jax claim decoder_positions --workdir=runs/claims

Tutorials say so, because attention knows no order. Haviv et al. 2022 disagree: the causal mask lets
a decoder count the tokens before each one, and their models without positions lose about 0.04 nats
per token against sinusoids.
"""


def get_claim():
    return dict(
        statement="A causal decoder has a lower loss with learned positions than without any.",
        config="tiny_shakespeare_claims",
        rows={"base": {}, "no positions": {"model.positions": "none"}},
        smallest=0.05,
        looks=(4, 8),
        source="Tutorials; Haviv et al. 2022 say that a causal decoder can do without",
    )
