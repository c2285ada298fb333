# SPDX-License-Identifier: Apache-2.0
"""The last layer of an encoder tells the senses of a word apart, its embedding does not.

    transformer_jax claim contextual_senses --workdir=runs/claims

Tutorials show it on "watch". The encoder is that of a small translator; the German side of a
sentence gives the sense. Value: how often the most similar of the other sentences with the word
(cosine, 30 of each sense) has the same sense; chance is 0.5.
"""

import re
from functools import partial

import numpy as np

from transformer_jax.data.sources import open_split

SENSES = {
    "watch": (r"uhr(en)?\b", r"seh|sieh|sah|schau|beobacht|pass|acht"),
    "kind": (r"nett|freundlich|lieb|gütig", r"\bart\b|arten|sorte|was für"),
    "like": (r"mag|mög|möch|gefäll|gern", r"\bwie\b"),
}
COUNT = 30
STEPS = ("train.num_steps", "optimizer.decay_steps", "eval.every_steps", "checkpoint.every_steps")
SMALL = dict.fromkeys(STEPS, 800) | {
    "data.name": "tatoeba_en_de",
    "tokenizer.vocab_size": 2000,
    "model.d_model": 64,
    "model.d_ff": 128,
}


def same_sense(run, layer):
    """Share of the sentences whose nearest neighbour has the same sense, mean over the words."""
    shares = []
    for word in SENSES:
        x = np.array([*vectors(run, word, layer, sense=0), *vectors(run, word, layer, sense=1)])
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        nearest = (x @ x.T - 2 * np.eye(len(x))).argmax(1)
        shares.append(np.mean((nearest < COUNT) == (np.arange(len(x)) < COUNT)))
    return np.mean(shares)


def vectors(run, word, layer, sense):
    """Vectors [D] of a word in the first sentences that have it in a sense."""
    pairs = [
        pair for pair in open_split(run.settings.data, "train") if f" {word} " in pair["source"]
    ]
    for pair in [pair for pair in pairs if sense_in(pair["target"], SENSES[word]) == sense][:COUNT]:
        hidden = run.hidden(pair["source"], pair["target"])
        yield hidden.streams["encoder"][layer, hidden.tokens["encoder"].index(f"▁{word}")]


def sense_in(german, senses):
    """Index of the sense whose words are in the German sentence; None if it is not one alone."""
    found = [i for i, words in enumerate(senses) if re.search(words, german.lower())]
    return found[0] if len(found) == 1 else None


def get_claim():
    return dict(
        statement="The nearest neighbour of an ambiguous word shares its sense more often in the "
        "last layer of an encoder than in the embedding.",
        config="quickstart",
        base=SMALL,
        rows={"translator": {}},
        metric="share of neighbours of the same sense",
        measure={
            "last layer": partial(same_sense, layer=-1),
            "embedding": partial(same_sense, layer=0),
        },
        better="higher",
        smallest=0.1,
        looks=(4, 8),
        source="tutorials; Ethayarajh 2019",
    )
