# SPDX-License-Identifier: Apache-2.0
"""Learned positions are nearly as good as sinusoids (Vaswani et al. 2017, table 3, row E).

    transformer_jax claim sinusoids_or_learned --workdir=runs/claims

The claim is the opposite, that sinusoids are better, so the paper expects that it does not hold.
The steps are those of `decoder_positions`.
"""

STEPS = ("train.num_steps", "optimizer.decay_steps", "eval.every_steps", "checkpoint.every_steps")


def get_claim():
    return dict(
        statement="Sinusoids reach a lower loss than learned positions.",
        config="tiny_shakespeare_claims",
        base=dict.fromkeys(STEPS, 600),
        rows={"sinusoids": {"model.positions": "sinusoidal"}, "learned positions": {}},
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.2, say that they are nearly identical",
    )
