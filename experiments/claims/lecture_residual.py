# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT, step 4: three blocks need residual connections.

    transformer_jax claim lecture_residual --workdir=runs/claims/lecture \\
        --modules=experiments/claims/modules/without_parts.py

Karpathy's lecture "Let's build GPT": three blocks alone are no better than one, with residual
connections they reach 2.08. The setting is that of `lecture_attention`.
"""

from lecture_attention import BARE
from lecture_attention import get_claim as first_step


def get_claim():
    return first_step() | dict(
        statement="Residual connections lower the validation loss of three blocks.",
        rows={"residual": BARE | {"model.residual_connections": True}, "none": BARE},
    )
