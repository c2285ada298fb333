# SPDX-License-Identifier: Apache-2.0
"""A search: min-p sampling (Nguyen et al. 2024), which drops the least likely tokens.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/lm \\
        --modules=docs/recipes/search.py \\
        --config.decode.search=min_p --config.decode.min_p.least=0.2

Any trained run can use it: `predict --modules=docs/recipes/search.py --search=min_p ...`, with the
same option.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.decoding import Sampler
from transformer_jax.inference.config import SEARCHES
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class MinPOptions:
    """Options of the search, config fields `decode.min_p.*`.

    Attributes:
      least: probability of the least likely token that is kept, relative to the likeliest one.
    """

    least: Annotated[float, Range(0, 1, "(]")] = 0.1


@dataclasses.dataclass(frozen=True)
class MinP(Sampler):
    """Samples tokens that are at least `min_p` times as likely as the most likely one."""

    min_p: float = 0.1

    def truncated(self, logits):  # [N, V]
        logits = super().truncated(logits)
        least = logits.max(axis=-1, keepdims=True) + jnp.log(self.min_p)
        return jnp.where(logits < least, -jnp.inf, logits)


@SEARCHES.register("min_p", options=MinPOptions)
def min_p(decode, ids):
    """Builds the search from the section `decode` and the special token ids."""
    return MinP(
        temperature=decode.temperature or 1.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        repetition_penalty=decode.repetition_penalty,
        min_p=decode.options_of(MinPOptions).least,
        **ids,
    )
