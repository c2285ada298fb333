# SPDX-License-Identifier: Apache-2.0
"""Constraints on the tokens that a search may write. Searches do not know about them.

Axes: B batch, N = B * beams, W constraint tokens of a sentence, V vocabulary.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.interface import DecodeStep, Memory, Start, State


@runtime_checkable
class Constraint(Protocol):
    """Decides which token may follow which, with a state of its own.

    The state is a pytree of arrays, with leading axis B where a search starts and N during the
    search; it is passed through the search beside the model's. A constraint must be hashable,
    because it is a static argument of compiled functions.
    """

    def begin(
        self, tokens: Int[Array, "B W"], counts: Int[Array, " B"], limits: Int[Array, " B"]
    ) -> State:
        """Returns the state before the first token.

        Args:
          tokens: tokens that the constraint knows of each sentence, such as those of its words.
        """

    def allowed(self, state: State) -> Bool[Array, "N V"]:
        """Mask of the tokens that may come next."""

    def advance(self, state: State, tokens: Int[Array, " N"]) -> tuple[State, Int[Array, " N"]]:
        """Returns the state after one more token of each hypothesis, and the tokens that the model
        reads: the same ones, or more informative ones."""


def masked_logits(
    logits: Float[Array, "N V"], allowed: Bool[Array, "N V"], banned_id: int
) -> Float[Array, "N V"]:
    """Logits with -inf for tokens that are not allowed.

    The probability of those tokens goes to `banned_id`, a token that the search never chooses. A
    softmax over all tokens then gives each allowed token its probability under the model: scores
    stay the model's.
    """
    allowed = allowed.at[:, banned_id].set(False)
    excluded = logsumexp(jnp.where(allowed, -jnp.inf, logits), axis=-1)
    return jnp.where(allowed, logits, -jnp.inf).at[:, banned_id].set(excluded)


def start_under(
    constraint: Constraint,
    start: Start,
    tokens: Int[Array, "B W"],
    counts: Int[Array, " B"],
    banned_id: int,
) -> Start:
    """Start of a search under a constraint; `tokens` and `counts` as of `Constraint.begin`."""
    before = start.before
    if before is None:
        first = constraint.begin(tokens, counts, start.max_lengths)
    else:
        last = jnp.take_along_axis(before.tokens, before.lengths[:, None] - 1, axis=1)[:, 0]
        first, _ = constraint.advance(before.state, last)
    logits = masked_logits(start.logits, constraint.allowed(first), banned_id)
    return dataclasses.replace(start, logits=logits, state=(start.state, first))


def constrained(decode_step: DecodeStep, constraint: Constraint, banned_id: int) -> DecodeStep:
    """Decode step under a constraint. Its state is (the model's state, the constraint's state)."""

    def step(tokens: Int[Array, " N"], memory: Memory, state: State) -> Any:
        model_state, constraint_state = state
        constraint_state, read = constraint.advance(constraint_state, tokens)
        result: Any = decode_step(read, memory, model_state)
        logits, model_state, *hidden = result
        allowed = constraint.allowed(constraint_state)
        logits = masked_logits(logits, allowed, banned_id)
        return logits, (model_state, constraint_state), *hidden

    return step
