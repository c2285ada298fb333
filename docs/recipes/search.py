# SPDX-License-Identifier: Apache-2.0
"""A search: min-p sampling (Nguyen et al. 2024), which drops the least likely tokens.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/lm \\
        --modules=docs/recipes/search.py --config.decode.search=min_p_0.1

Any trained run can use it: `predict --modules=docs/recipes/search.py --search=min_p_0.1 ...`.
"""

import dataclasses
from functools import partial

import jax.numpy as jnp

from transformer_jax.decoding import Sampler
from transformer_jax.inference.config import SEARCHES


@dataclasses.dataclass(frozen=True)
class MinP(Sampler):
    """Samples tokens that are at least `min_p` times as likely as the most likely one."""

    min_p: float = 0.1

    def truncated(self, logits):  # [N, V]
        logits = super().truncated(logits)
        least = logits.max(axis=-1, keepdims=True) + jnp.log(self.min_p)
        return jnp.where(logits < least, -jnp.inf, logits)


def min_p(least, decode, ids):
    """Builds the search from the section `decode` and the special token ids."""
    return MinP(
        temperature=decode.temperature or 1.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        repetition_penalty=decode.repetition_penalty,
        min_p=least,
        **ids,
    )


for least in (0.05, 0.1, 0.2):
    SEARCHES.register(f"min_p_{least}", partial(min_p, least))
