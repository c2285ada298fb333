# SPDX-License-Identifier: Apache-2.0
"""Beam search translates better than greedy search (Vaswani et al. 2017, section 6.1).

    transformer_jax claim beam_or_greedy --workdir=runs/claims

Both search with the same models, the small translators of contextual_senses, on the first 200
validation sentences of Tatoeba, with the length penalty of Vaswani et al. 2017 (alpha 0.6). On the
embedded task of the quick start both find the same outputs for nearly all sentences.
"""

from functools import partial

from contextual_senses import SMALL

from transformer_jax.data.sources import open_split
from transformer_jax.scoring.text import score_translations


def bleu(run, beam_size):
    pairs = list(open_split(run.settings.data, "valid"))[:200]
    outputs = run.predict([pair["source"] for pair in pairs], beam_size=beam_size)
    return score_translations(outputs, [pair["target"] for pair in pairs])["bleu"]


def get_claim():
    return dict(
        statement="A beam of 4 has a higher BLEU than greedy search.",
        config="quickstart",
        base=SMALL,
        rows={"translator": {}},
        metric="bleu",
        better="higher",
        measure={"beam of 4": partial(bleu, beam_size=4), "greedy": partial(bleu, beam_size=1)},
        smallest=0.5,
        looks=(4, 8),
        source="Vaswani et al. 2017, section 6.1; Sutskever et al. 2014, table 1",
    )
