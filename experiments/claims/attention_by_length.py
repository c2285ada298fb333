# SPDX-License-Identifier: Apache-2.0
"""Attention helps recurrent encoder-decoders most on long inputs (Bahdanau et al. 2015, figure 2).

    transformer_jax claim attention_by_length --workdir=runs/claims \\
        --modules=experiments/claims/modules/recall.py

In the figure, BLEU falls with the length of a sentence without attention, and hardly with it. Here
the task and the LSTM without attention are those of recall_lstm. Value: loss of the first letter
after texts of 40 to 48 letters minus that after texts of 4 to 12 letters. Attention brings both to
almost 0. Without it they are large, but equal (0.5 to 2.3 nats after long texts, 0.5 to 2.3 after
short ones). The claim was not tested on translation, where the figure is from.

Tutorials: an encoder without attention fails on long sentences
([one](https://blog.sotaaz.com/post/context-vector-limitation-en)). Here: Where the first letter is
to be recalled, an LSTM without attention fails on short inputs as well.
"""

import numpy as np
from recall_lstm import LSTM
from recall_lstm import get_claim as recall_lstm


def loss_by_length(run):
    """Loss of a letter after long texts minus that after short ones."""
    return loss(run, 40, 48) - loss(run, 4, 12)


def loss(run, shortest, longest):
    random = np.random.default_rng(3)
    lengths = random.integers(shortest, longest + 1, 200)
    texts = ["".join(random.choice(list("abcdefghijklmnop"), n)) for n in lengths]
    return -np.mean(run.score(texts, [text[0] for text in texts]))


def get_claim():
    return recall_lstm() | dict(
        statement="Attention lowers an LSTM's loss more on long than on short inputs.",
        rows={"attention": LSTM | {"model.attention_score": "additive"}, "LSTM": LSTM},
        metric="loss on long minus short inputs",
        measure=loss_by_length,
        better="lower",
        smallest=0.1,
        source="Bahdanau et al. 2015, figure 2",
    )
