# SPDX-License-Identifier: Apache-2.0
"""Label smoothing hurts perplexity (Vaswani et al. 2017, section 5.4 and table 3, rows D).

    transformer_jax claim label_smoothing_perplexity --workdir=runs/claims

The paper's base model has a perplexity of 4.92 with a smoothing of 0.1, and 4.67 without: losses of
1.593 and 1.541 nats. The runs are those of label_smoothing_bleu; the loss is not smoothed.
"""

from label_smoothing_bleu import ROWS
from label_smoothing_bleu import get_claim as label_smoothing_bleu


def get_claim():
    return label_smoothing_bleu() | dict(
        statement="A translator trained without label smoothing has a lower loss than one with it.",
        rows=dict(reversed(ROWS.items())),
        metric="loss",
        better="lower",
        smallest=0.02,
    )
