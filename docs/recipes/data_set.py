# SPDX-License-Identifier: Apache-2.0
"""A data set: sums of two numbers, "17 + 25" -> "42".

    transformer_jax train --config=scan --workdir=runs/sums \\
        --modules=docs/recipes/data_set.py --config.data.name=sums --config.tokenizer.kind=char
"""

import numpy as np

from transformer_jax.data.examples import Parsed
from transformer_jax.data.sources import SOURCES, SourceSet

SPLITS = {"train": slice(0, 9000), "valid": slice(9000, 9500), "test": slice(9500, 10_000)}


def open_split(config, split):
    """Returns the corpora of a split (here one); `config` is the section `data`."""
    pairs = np.random.default_rng(0).permutation(10_000)  # of numbers below 100
    return [Parsed(pairs[SPLITS[split]], example)]


def example(pair):
    """Makes an example on demand, so that a set may be larger than memory."""
    a, b = divmod(int(pair), 100)
    return {"source": f"{a} + {b}", "target": str(a + b)}


SOURCES.register("sums", SourceSet(open_split, tuple(SPLITS)))
