# SPDX-License-Identifier: Apache-2.0
"""A Transformer recalls more over long distances than an LSTM (Vaswani et al. 2017, section 4).

    transformer_jax claim recall_transformer --workdir=runs/claims \\
        --modules=experiments/claims/modules/recall.py

The path between two tokens has one step in self-attention, and as many as their distance in a
recurrent network. The task and the LSTM are those of recall_lstm; the Transformer has one layer on
each side and the same width. The LSTM's loss is as large after 4 to 12 letters
(attention_by_length), so that its errors do not come from the distance alone.
"""

from recall_lstm import LSTM
from recall_lstm import get_claim as recall_lstm

TRANSFORMER = {"model.num_heads": 4, "model.d_ff": 128}


def get_claim():
    return recall_lstm() | dict(
        statement="A Transformer recalls a letter over 40 to 48 steps better than an LSTM.",
        rows={"Transformer": TRANSFORMER, "LSTM": LSTM},
        source="Vaswani et al. 2017, section 4",
    )
