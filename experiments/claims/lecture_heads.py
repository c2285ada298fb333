# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT, step 2: four heads of width 8 are better than one head of width 32.

    transformer_jax claim lecture_heads --workdir=runs/claims/lecture \\
        --modules=experiments/claims/modules/without_parts.py

Karpathy's lecture "Let's build GPT": from 2.4 to 2.28. The setting is that of `lecture_attention`.
"""

from lecture_attention import ONE_HEAD, ONLY_ATTENTION
from lecture_attention import get_claim as first_step


def get_claim():
    return first_step() | dict(
        statement="Four heads have a lower validation loss than one head of the same width.",
        rows={"four heads": ONLY_ATTENTION, "one head": ONE_HEAD},
    )
