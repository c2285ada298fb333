# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT, step 5: layer norm before attention and feed-forward lowers the loss.

    transformer_jax claim lecture_norm --workdir=runs/claims/lecture \\
        --modules=experiments/claims/modules/without_parts.py

Karpathy's lecture "Let's build GPT": from 2.08 to 2.06, the last step before it scales up. The
setting is that of `lecture_attention`.
"""

from lecture_attention import BARE
from lecture_attention import get_claim as first_step


def get_claim():
    return first_step() | dict(
        statement="Layer norm lowers the validation loss of three blocks with residuals.",
        rows={"layer norm": {}, "residual": BARE | {"model.residual_connections": True}},
    )
