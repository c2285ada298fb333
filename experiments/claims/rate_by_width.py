# SPDX-License-Identifier: Apache-2.0
"""A wider Transformer needs a lower learning rate, by d_model^-0.5 (Vaswani et al. 2017).

    transformer_jax claim rate_by_width --workdir=runs/claims

Equation 3 of the paper multiplies the rate by d_model^-0.5. The factor on it, FACTOR, is the best
of FACTORS at d_model = 32 (one seed). At four times this width, the equation halves the rate; the
other row keeps the rate of d_model = 32.
"""

FACTORS = (0.125, 0.25, 0.5, 1.0)
FACTOR = 0.5


def get_claim():
    return dict(
        statement="At width 128, equation 3 reaches a lower loss than the best rate of width 32.",
        config="tiny_shakespeare_claims",
        base={
            "model.d_model": 128,
            "model.d_ff": 256,
            "optimizer.schedule": "transformer",
            "optimizer.warmup_steps": 50,
        },
        rows={
            "of equation 3": {"optimizer.learning_rate": FACTOR},
            "of d_model = 32": {"optimizer.learning_rate": 2 * FACTOR},
        },
        smallest=0.05,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 5.3",
    )
