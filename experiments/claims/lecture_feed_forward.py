# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT, step 3: a feed-forward layer after attention lowers the loss.

    transformer_jax claim lecture_feed_forward --workdir=runs/claims/lecture \\
        --modules=experiments/claims/modules/without_parts.py

Karpathy's lecture "Let's build GPT": from 2.28 to 2.24. The setting is that of `lecture_attention`,
but the feed-forward layer has four times the width from the start, as the lecture's has later.
"""

from lecture_attention import ONE_LAYER, ONLY_ATTENTION
from lecture_attention import get_claim as first_step


def get_claim():
    return first_step() | dict(
        statement="A feed-forward layer after attention lowers the validation loss.",
        rows={"feed-forward": ONE_LAYER, "four heads": ONLY_ATTENTION},
    )
