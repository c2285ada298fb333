# SPDX-License-Identifier: Apache-2.0
"""Does a recurrent translator need attention? Bahdanau et al. 2015, figure 2 and table 1.

    python -m transformer_jax sweep --sweep=experiments/sweeps/fixed_vector.py \\
        --workdir=runs/fixed_vector

RNNencdec (Cho et al. 2014) passes the source to its decoder as one vector of fixed length;
RNNsearch has additive attention and an encoder of both directions. Both have gated recurrent units.
"""

ROWS = {
    "RNNencdec": {"model.attention_score": "none", "model.encoder_direction": "forward"},
    "RNNsearch": {"model.attention_score": "additive", "model.encoder_direction": "both"},
}


def get_sweep():
    return dict(
        config="multi30k_en_de_rnn",
        base={"model.cell": "gru"},
        rows=ROWS,
        seeds=3,
        metrics=["perplexity", "bleu"],
    )
