# SPDX-License-Identifier: Apache-2.0
"""A constraint on outputs: no n-gram of tokens occurs twice (Paulus et al. 2017).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/varied \\
        --modules=docs/recipes/constraint.py --config.decode.constraint=no_repeat \\
        --config.decode.no_repeat.size=8
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from transformer_jax.inference.config import CONSTRAINTS
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class NoRepeatOptions:
    """Options of the constraint.

    Attributes:
      size: tokens of an n-gram.
    """

    size: Annotated[int, Range(1, 8)] = 3


@dataclasses.dataclass(frozen=True)
class NoRepeat:
    """Its state is the output so far: tokens [N, L] and their number [N]."""

    size: int
    longest: int
    vocab_size: int

    def begin(self, tokens, counts, limits):
        return jnp.full((len(counts), self.longest), -1), jnp.zeros(len(counts), jnp.int32)

    def allowed(self, state):  # [N, V]
        tokens, count = state
        starts = jnp.arange(self.longest)
        next_token = jnp.roll(tokens, 1 - self.size, axis=1)  # of the n-gram at each start
        same = starts + self.size <= count[:, None]  # a whole n-gram
        for i in range(self.size - 1):
            last = jnp.take_along_axis(tokens, count[:, None] - self.size + 1 + i, 1, mode="clip")
            same &= jnp.roll(tokens, -i, axis=1) == last
        rows = jnp.arange(len(count))[:, None]
        barred = jnp.where(same & (count[:, None] >= self.size - 1), next_token, self.vocab_size)
        return (
            jnp.ones((len(count), self.vocab_size), bool).at[rows, barred].set(False, mode="drop")
        )

    def advance(self, state, tokens):
        before, count = state
        write = jax.vmap(lambda row, i, token: row.at[i].set(token, mode="drop"))
        return (write(before, count, tokens), count + 1), tokens


@CONSTRAINTS.register("no_repeat", options=NoRepeatOptions)
def no_repeat(decode, tokenizer):
    """Builds the constraint from the section `decode` and the tokenizer of the outputs."""
    size = decode.options_of(NoRepeatOptions).size
    return NoRepeat(size, decode.max_extra_length, tokenizer.vocab_size)
