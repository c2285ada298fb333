# SPDX-License-Identifier: Apache-2.0
"""Attention helps recurrent translators most on long sentences (Bahdanau et al. 2015, figure 2).

    transformer_jax claim attention_by_length --workdir=runs/claims

Each model's value is its loss per token on long sentences minus that on short ones (the longest and
the shortest quarter of the validation sources). Attention should lower it.
"""

import numpy as np
from label_smoothing_bleu import SMALL

from transformer_jax.data.sources import open_split

LAYERS = ("model.num_encoder_layers", "model.num_decoder_layers")
RECURRENT = {"model.architecture": "recurrent"} | dict.fromkeys(LAYERS, 1)


def loss_by_length(run):
    """Loss per target token on the longest quarter of the sources minus that on the shortest."""
    pairs = open_split(run.settings.data, "valid")
    sources, targets = ([pair[side] for pair in pairs] for side in ("source", "target"))
    losses = -np.array(run.score(sources, targets))
    tokens = np.array([len(run.tokenizer["target"].encode(one)) + 1 for one in targets])
    order = np.argsort([len(one.split()) for one in sources], kind="stable")
    quarter = len(order) // 4
    short, long = order[:quarter], order[-quarter:]
    return losses[long].sum() / tokens[long].sum() - losses[short].sum() / tokens[short].sum()


def get_claim():
    return dict(
        statement="Attention lowers a recurrent translator's loss more on long than short sources.",
        config="quickstart",
        base=SMALL | RECURRENT,
        rows={
            "attention": {"model.attention_score": "additive"},
            "none": {"model.attention_score": "none"},
        },
        metric="loss on long minus short sources",
        measure=loss_by_length,
        smallest=0.1,
        looks=(4, 8),
        source="Bahdanau et al. 2015, figure 2",
    )
