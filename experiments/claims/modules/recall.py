# SPDX-License-Identifier: Apache-2.0
"""A data set that measures memory: recall of the first letter of a random text, "fbchd" -> "f".

    transformer_jax train --config=scan --workdir=runs/recall --config.data.name=recall \\
        --config.tokenizer.kind=char --modules=experiments/claims/modules/recall.py

Training texts have 2 to 48 letters; those of the other splits have 40 to 48, the longest distances.
"""

import numpy as np

from transformer_jax.data.examples import Parsed
from transformer_jax.data.sources import SOURCES, SourceSet

SPLITS = {"train": (0, 20_000, 2), "valid": (1, 200, 40), "test": (2, 200, 40)}
LETTERS, LONGEST = np.array(list("abcdefghijklmnop")), 48


def open_split(config, split):
    """Returns the corpora of a split: one, with texts drawn from the split's own seed."""
    seed, count, shortest = SPLITS[split]
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, LONGEST + 1, count)
    return [Parsed(["".join(random.choice(LETTERS, n)) for n in lengths], example)]


def example(text):
    return {"source": text, "target": text[0]}


SOURCES.register("recall", SourceSet(open_split, tuple(SPLITS)))
