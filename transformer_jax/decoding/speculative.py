# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: a draft proposes tokens, the model accepts or replaces them.

The draft proposes G tokens one by one. The model reads them in one step and keeps the longest
beginning that passes a random test. The outputs have the distribution of the model alone, and in
greedy search they are the same tokens (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

Axes: N rows, G proposed tokens, V vocabulary, L output length.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.interface import DecodeStep, Memory, Start, State, rewind
from transformer_jax.decoding.sampling import Count, Sampler, Samples, token_log_probs

_TOKEN, _PROPOSAL, _ACCEPTANCE = range(3)
"""What a random key of a position is for."""


@dataclasses.dataclass(frozen=True)
class DraftedStep:
    """Decode step of a model that has a draft. Both read and change their own part of one memory
    and one state.
    """

    model: DecodeStep
    draft: DecodeStep

    def __call__(
        self, tokens: Int[Array, "N ..."], memory: Memory, state: State
    ) -> tuple[Float[Array, "N ... V"], State]:
        return self.model(tokens, memory, state)


class Proposals(NamedTuple):
    """Tokens that the draft proposes.

    Attributes:
      tokens: int32 [N, G].
      probabilities: float32 [N, G, V], which each token was drawn from; None in greedy search.
      seen: bool [N, G + 1, V], tokens that occurred before each proposal, and before the token
        after the last one; None if repetition is not penalized.
    """

    tokens: Array
    probabilities: Array | None
    seen: Array | None


@dataclasses.dataclass(frozen=True)
class SpeculativeSampler(Sampler):
    """Samples from the model's distribution with the help of a draft.

    Both distributions are truncated and penalized alike. The decode step must be a `DraftedStep`,
    and the state must have `draft_length` more slots than tokens.

    Attributes:
      draft_length: G, number of tokens that the draft proposes at once.
    """

    draft_length: int = 4

    def begin(self, start: Start, **options: Any) -> Samples:
        """Chooses the first token of each output; arguments as of `Sampler.begin`."""
        first = super().begin(start, **options)
        return dataclasses.replace(first, num_steps=jnp.zeros_like(first.limits))

    def advance(
        self, samples: Samples, decode_step: DecodeStep, memory: Memory, length: Count
    ) -> Samples:
        """Adds up to G + 1 tokens to each row by one step of the model. Rows then differ in length;
        those that have `length` tokens wait for the others."""
        assert isinstance(decode_step, DraftedStep)
        lengths = samples.lengths
        rows = jnp.arange(len(lengths))[:, None]
        ahead = jnp.arange(self.draft_length + 1)
        draws = (samples.drawn_before + lengths)[:, None] + ahead
        keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(samples.keys, draws)
        last = samples.tokens[rows, lengths[:, None] - 1]
        proposed, state = self._propose(samples, last[:, 0], keys, decode_step.draft, memory)
        logits, state = decode_step(jnp.concatenate([last, proposed.tokens], 1), memory, state)
        num_accepted, chosen = self._verify(proposed, logits, keys)
        tokens = jnp.pad(proposed.tokens, ((0, 0), (0, 1)))
        tokens = jnp.where(ahead == num_accepted[:, None], chosen[:, None], tokens)

        most = jnp.minimum(jnp.where(samples.ended, 0, length), samples.limits)
        is_new = (ahead <= num_accepted[:, None]) & (lengths[:, None] + ahead < most[:, None])
        is_end = tokens == self.eos_id
        is_new &= jnp.cumsum(is_end, axis=1) - is_end == 0  # nothing after the end
        counts = is_new.sum(axis=1)
        places = jnp.where(is_new, lengths[:, None] + ahead, samples.tokens.shape[1])
        log_probs = token_log_probs(logits, tokens)
        seen = samples.seen
        if seen is not None:
            seen = seen.at[rows, jnp.where(is_new, tokens, seen.shape[1])].set(True, mode="drop")
        lengths = lengths + counts
        ended = samples.ended | (is_new & is_end).any(axis=1) | (lengths >= samples.limits)
        return dataclasses.replace(
            samples,
            lengths=lengths,
            tokens=samples.tokens.at[rows, places].set(tokens, mode="drop"),
            log_probs=samples.log_probs.at[rows, places].set(log_probs, mode="drop"),
            ended=ended,
            seen=seen,
            # Both models have read all G + 1 tokens, and the last new one is still to be read.
            state=rewind(state, self.draft_length + 1 - counts),
            num_steps=jnp.asarray(samples.num_steps) + (counts > 0),
        )

    def _propose(
        self,
        samples: Samples,
        last: Int[Array, " N"],
        keys: Array,
        draft: DecodeStep,
        memory: Memory,
    ) -> tuple[Proposals, State]:
        """Lets the draft sample G tokens after the last ones. It reads all of them."""

        def step(carry: tuple[Array, Array | None, State], keys: Array) -> tuple[tuple, tuple]:
            token, seen, state = carry
            logits, state = draft(token, memory, state)
            if self.is_greedy:
                drawn = self.most_likely(logits, seen)
                probabilities = None
            else:
                probabilities = self._probabilities(logits, seen)
                draw_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, _PROPOSAL)
                drawn = jax.vmap(jax.random.categorical)(draw_keys, jnp.log(probabilities))
            after = None if seen is None else seen.at[jnp.arange(len(seen)), drawn].set(True)
            return (drawn, after, state), (drawn, probabilities, seen)

        # G + 1 steps: the last one reads the last proposal, and the token it draws is dropped.
        start = last, samples.seen, samples.state
        (_, _, state), steps = lax.scan(step, start, jnp.swapaxes(keys, 0, 1))
        tokens, probabilities, seen = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)
        probabilities = None if self.is_greedy else probabilities[:, :-1]
        return Proposals(tokens[:, :-1], probabilities, seen), state

    def _verify(
        self, proposed: Proposals, logits: Float[Array, "N G1 V"], keys: Array
    ) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
        """Returns the number of proposals of each row that are accepted, and the token after them;
        logits and keys are of each proposal and of the token after the last one."""
        if not self.is_greedy:
            wanted = self._probabilities(logits, proposed.seen)
            num_accepted = _count_accepted(proposed, wanted, keys)
            return num_accepted, _choose_next(proposed, wanted, num_accepted, keys)
        size = logits.shape[-1]
        seen = None if proposed.seen is None else proposed.seen.reshape(-1, size)
        best = self.most_likely(logits.reshape(-1, size), seen).reshape(keys.shape)
        num_accepted = jnp.cumprod(best[:, :-1] == proposed.tokens, axis=1).sum(axis=1)
        return num_accepted, jnp.take_along_axis(best, num_accepted[:, None], axis=1)[:, 0]

    def _probabilities(
        self, logits: Float[Array, "N ... V"], seen: Bool[Array, "N ... V"] | None
    ) -> Float[Array, "N ... V"]:
        """Probabilities to sample from, after penalty and truncation."""
        size = logits.shape[-1]
        seen = None if seen is None else seen.reshape(-1, size)
        allowed = self.truncated(self.penalized(logits.reshape(-1, size), seen))
        return jax.nn.softmax(allowed).reshape(logits.shape)


def _count_accepted(
    proposed: Proposals, wanted: Float[Array, "N G1 V"], keys: Array
) -> Int[Array, " N"]:
    """Number of proposals of each row before the first that is rejected. One of probability q under
    the draft and p under the model is accepted with probability min(1, p / q)."""
    tokens = proposed.tokens[:, :, None]
    p = jnp.take_along_axis(wanted[:, :-1], tokens, 2)[:, :, 0]
    q = jnp.take_along_axis(jnp.asarray(proposed.probabilities), tokens, 2)[:, :, 0]
    draw = jax.vmap(jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, _ACCEPTANCE))))
    return jnp.cumprod(draw(keys[:, :-1]) * q < p, axis=1).sum(axis=1)


def _choose_next(
    proposed: Proposals, wanted: Float[Array, "N G1 V"], num_accepted: Int[Array, " N"], keys: Array
) -> Int[Array, " N"]:
    """Samples the token after the accepted ones: in place of a rejected one from max(0, p - q),
    normalized, and after the last proposal from p."""

    def at_next(x: Array) -> Array:  # [N, G + 1, ...] -> [N, ...]
        return jax.vmap(lambda row, index: row[index])(x, num_accepted)

    p = at_next(wanted)
    q = at_next(jnp.pad(jnp.asarray(proposed.probabilities), ((0, 0), (0, 1), (0, 0))))
    left = jnp.maximum(p - q, 0)
    # Nothing is left if p = q, and then only rounding can have rejected the proposal.
    left = jnp.where(left.any(axis=1, keepdims=True), left, p)
    next_keys = jax.vmap(jax.random.fold_in, (0, None))(at_next(keys), _TOKEN)
    return jax.vmap(jax.random.categorical)(next_keys, jnp.log(left))
