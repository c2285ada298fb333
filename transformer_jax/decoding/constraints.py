"""Constraints: what a search may write. No search knows of them.

Axes: B batch, N = B * beams, W what is told of a sentence, V vocabulary.
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.interface import DecodeStep, Memory, State


@runtime_checkable
class Constraint(Protocol):
    """Which token may follow which, with a state of its own.

    The state is a pytree of arrays, led by B where a search starts and by N in it, and passes
    through the search beside the model's. Hashable, as it is compiled in.
    """

    def begin(
        self, given: Int[Array, "B W"], counts: Int[Array, " B"], limits: Int[Array, " B"]
    ) -> State:
        """The state before the first token.

        Args:
          given: what the constraint is told of each sentence, such as the tokens of its words.
          counts: how many of them each sentence has.
          limits: the longest output of each, EOS included.
        """

    def allowed(self, state: State) -> Bool[Array, "N V"]:
        """Whether each token may come next."""

    def advance(self, state: State, tokens: Int[Array, " N"]) -> tuple[State, Int[Array, " N"]]:
        """The state behind one more token each, and what the model reads in its place: the token
        itself, or one that says more."""


def masked_logits(
    logits: Float[Array, "N V"], allowed: Bool[Array, "N V"], banned_id: int
) -> Float[Array, "N V"]:
    """The logits with -inf for what is not allowed.

    Its probability goes to a token that the search never chooses, so that a softmax over all gives
    what is allowed the probability that the model does: scores stay the model's.
    """
    allowed = allowed.at[:, banned_id].set(False)
    excluded = logsumexp(jnp.where(allowed, -jnp.inf, logits), axis=-1)
    return jnp.where(allowed, logits, -jnp.inf).at[:, banned_id].set(excluded)


def constrained(decode_step: DecodeStep, constraint: Constraint, banned_id: int) -> DecodeStep:
    """The step under a constraint; its state is (the model's, the constraint's).

    Args:
      decode_step: the model's.
      constraint: what may be written.
      banned_id: as of `masked_logits`.
    """

    def step(
        tokens: Int[Array, " N"], memory: Memory, state: State
    ) -> tuple[Float[Array, "N V"], State]:
        of_model, of_constraint = state
        of_constraint, read = constraint.advance(of_constraint, tokens)
        logits, of_model = decode_step(read, memory, of_model)
        allowed = constraint.allowed(of_constraint)
        return masked_logits(logits, allowed, banned_id), (of_model, of_constraint)

    return step
