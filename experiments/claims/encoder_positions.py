# SPDX-License-Identifier: Apache-2.0
"""An encoder needs position encodings (Vaswani et al. 2017, section 3.5).

    transformer_jax claim encoder_positions --workdir=runs/claims \\
        --modules=experiments/claims/modules/recall.py

Without positions and without a causal mask, attention treats a text as a bag of tokens. The task is
that of recall_lstm: naming the first letter of a text. The target has one letter, so that only the
encoder's order matters.
"""

from recall_lstm import get_claim as recall_lstm
from recall_transformer import TRANSFORMER

NO_POSITIONS = {"model.positions": "none"}


def get_claim():
    return recall_lstm() | dict(
        statement="A Transformer names the first letter of a text better with positions than "
        "without any.",
        rows={
            "Transformer": TRANSFORMER,
            "no positions": TRANSFORMER | {"model.positions": "none"},
        },
        source="Vaswani et al. 2017, section 3.5",
    )
