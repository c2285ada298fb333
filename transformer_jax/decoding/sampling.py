# SPDX-License-Identifier: Apache-2.0
"""Sampling with temperature, top-k, top-p and a repetition penalty.

Axes: B batch, n samples of a sentence, N = B * n rows, V vocabulary, L output length.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.beam_search import top_k as block_top_k
from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, Start, State

Count = Int[Array, ""] | int

Seen = Bool[Array, "N V"] | None
"""True for tokens that occurred in a row; None: repetition is not penalized."""


def truncated_logits(
    logits: Float[Array, "N V"],
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    banned_ids: tuple[int, ...] = (),
) -> Float[Array, "N V"]:
    """Logits to sample from; -inf for tokens that cannot be sampled.

    Args:
      temperature: divides the logits; below 1 makes likely tokens likelier.
      top_k: keep the k most likely tokens (Fan et al. 2018); of equal ones the first.
      top_p: keep the smallest set of most likely tokens with this total probability (Holtzman et
        al. 2020), of equal ones the first; applied after `top_k`. 1 keeps all.
      banned_ids: tokens that are never sampled.
    """
    logits = logits / temperature
    if banned_ids:
        logits = logits.at[:, jnp.array(banned_ids)].set(-jnp.inf)
    if top_k is not None and top_k < logits.shape[-1]:
        values, ids = block_top_k(logits, top_k)
        none = jnp.full_like(logits, -jnp.inf)
        logits = jnp.put_along_axis(none, ids, values, axis=-1, inplace=False)
    if top_p is not None and top_p < 1:
        logits = jnp.where(nucleus(logits, top_p), logits, -jnp.inf)
    return logits


def nucleus(logits: Float[Array, "N V"], top_p: float) -> Bool[Array, "N V"]:
    """True for the fewest most likely tokens with a total probability of at least `top_p`."""
    ordered = -jnp.sort(-logits, axis=-1)
    before = jnp.cumsum(jax.nn.softmax(ordered), axis=-1)[:, :-1]
    count = 1 + (before < top_p).sum(axis=-1, keepdims=True)
    least = jnp.take_along_axis(ordered, count - 1, axis=-1)
    above = logits > least
    equal = logits == least
    # Of tokens exactly as likely as the least of them, only the first have room.
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, axis=-1) <= room))


def token_log_probs(logits: Float[Array, "*B V"], tokens: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Log-probability of each token, without those of the rest of the vocabulary."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(shifted, tokens[..., None], axis=-1)[..., 0]
    return chosen - jnp.log(jnp.exp(shifted).sum(axis=-1))  # rounded as `jax.nn.log_softmax` rounds


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """Samples, possibly unfinished: arrays [N, ...], one row for each.

    Attributes:
      log_probs: float32 [N, L], log-probability of each token under the model itself, in nats; 0
        after the end.
      limits: int32 [N], longest output of each, in 1..L.
      drawn_before: int32 [N], tokens that were sampled with a key before the first one here.
      seen: bool [N, V], tokens that occurred so far, if repetition is penalized; otherwise None.
      search_state: state of a subclass of `Sampler`, a pytree with leading axis N.
      num_steps: int32 [N], decode steps that a draft shortened (`speculative`); None without one.
    """

    lengths: Array
    tokens: Array
    log_probs: Array
    ended: Array
    limits: Array
    keys: Array
    drawn_before: Array
    seen: Array | None
    state: State
    search_state: Any = None
    num_steps: Array | None = None
    num_outputs: int = dataclasses.field(default=1, metadata={"static": True})

    def is_done(self, length: Count) -> Bool[Array, " B"]:
        """Returns True for each sentence whose samples all have ended or have `length` tokens."""
        return (self.ended | (self.lengths >= length)).reshape(-1, self.num_outputs).all(axis=1)


@runtime_checkable
class StepwiseSearch(Protocol):
    """A search that can pause every few tokens, with one row for each output.

    Language models need one: between two calls their outputs are streamed, cut at stop texts, and
    given a new context when they outgrow the model's. It must be hashable, like every `Search`.
    """

    def begin(
        self, start: Start, *, max_length: int, drawn_before: Count = 0, seen: Seen = None
    ) -> Samples:
        """Chooses the first token of each output."""

    def extend(
        self,
        samples: Samples,
        decode_step: DecodeStep,
        memory: Memory,
        length: Count,
        most_left: Count = 0,
    ) -> Samples:
        """Chooses tokens until the outputs of all but `most_left` sentences have `length` of them
        or have ended. Outputs that have not ended must have the same length, unless `length` is
        L."""


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Samples tokens from the model's distribution: a `RefillableSearch` and a `StepwiseSearch`.

    A subclass may replace `truncated`, `choose` or `advance`. `begin_search_state` makes a state of
    its own, `Samples.search_state`.

    Attributes:
      temperature, top_k, top_p: see `truncated_logits`.
      repetition_penalty: penalty of tokens that occurred before, see `penalized`; 1: none.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Samples `num_outputs` outputs of every sentence, most likely first. Call it under
        `jax.jit`.

        The samples of a sentence depend on its own key only, not on the rest of the batch. A score
        is log P(output) under the model itself, in nats.
        """
        first = self.open(start, num_outputs=num_outputs, max_length=max_length)
        return self.outputs(self.run(first, decode_step, start.memory, 0))

    def open(self, start: Start, *, num_outputs: int, max_length: int) -> Samples:
        keys = jax.vmap(lambda key: jax.random.split(key, num_outputs))(start.keys).reshape(-1)
        # [B, ...] -> [N, ...]; the memory stays [B, ...]
        start_of_samples = jax.tree.map(
            lambda x: jnp.repeat(x, num_outputs, axis=0), dataclasses.replace(start, memory=None)
        )
        start_of_samples = dataclasses.replace(start_of_samples, memory=start.memory, keys=keys)
        first = self.begin(start_of_samples, max_length=max_length)
        return dataclasses.replace(first, num_outputs=num_outputs)

    def run(
        self, samples: Samples, decode_step: DecodeStep, memory: Memory, most_left: Count
    ) -> Samples:
        return self.extend(samples, decode_step, memory, samples.tokens.shape[1], most_left)

    def is_done(self, samples: Samples) -> Bool[Array, " B"]:
        return samples.is_done(samples.tokens.shape[1])

    def outputs(self, samples: Samples) -> Hypotheses:
        count = samples.num_outputs
        tokens = samples.tokens.reshape(-1, count, samples.tokens.shape[1])
        sums = samples.log_probs.sum(axis=1).reshape(-1, count)
        scores, order = lax.top_k(sums, count)
        num_steps = samples.num_steps
        if num_steps is not None:
            num_steps = num_steps.reshape(-1, count).sum(axis=1)
        return Hypotheses(jnp.take_along_axis(tokens, order[:, :, None], axis=1), scores, num_steps)

    def begin(
        self, start: Start, *, max_length: int, drawn_before: Count = 0, seen: Seen = None
    ) -> Samples:
        rows = start.logits.shape[0]
        samples = Samples(
            lengths=jnp.zeros(rows, jnp.int32),
            tokens=jnp.full((rows, max_length), self.pad_id, jnp.int32),
            log_probs=jnp.zeros((rows, max_length)),
            ended=jnp.zeros(rows, bool),
            limits=jnp.clip(start.max_lengths, 1, max_length),
            keys=start.keys,
            drawn_before=jnp.full(rows, drawn_before, jnp.int32),
            seen=seen,
            state=start.state,
            search_state=self.begin_search_state(start)
            if start.before is None
            else start.before.search_state,
        )
        return self._draw(samples, start.logits, start.hidden)

    def begin_search_state(self, start: Start) -> Any:
        """State of a subclass before the first token (`Samples.search_state`). It continues where
        an output has outgrown the context."""
        return None

    def extend(
        self,
        samples: Samples,
        decode_step: DecodeStep,
        memory: Memory,
        length: Count,
        most_left: Count = 0,
    ) -> Samples:
        def step(samples: Samples) -> Samples:
            return self.advance(samples, decode_step, memory, length)

        def continues(samples: Samples) -> Bool[Array, ""]:
            return (~samples.is_done(length)).sum() > most_left

        return lax.while_loop(continues, step, samples)

    def advance(
        self, samples: Samples, decode_step: DecodeStep, memory: Memory, length: Count
    ) -> Samples:
        """Reads the last token of each sample and chooses the next. A subclass may read candidates
        too before it chooses (`add_tokens`); samples stay within `length` tokens."""
        last = jnp.take_along_axis(samples.tokens, samples.lengths[:, None] - 1, axis=1)[:, 0]
        result: Any = decode_step(last, memory, samples.state)
        logits, state, *hidden = result
        samples = dataclasses.replace(samples, state=state)
        return self._draw(samples, logits, hidden[0] if hidden else None)

    def penalized(self, logits: Float[Array, "N V"], seen: Seen) -> Float[Array, "N V"]:
        """Logits with the repetition penalty applied to the tokens seen: positive ones are divided
        by it, negative ones multiplied (Keskar et al. 2019, section 4.1)."""
        if seen is None:
            return logits
        penalty = self.repetition_penalty
        return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)

    @property
    def is_greedy(self) -> bool:
        """Returns True if the most likely token is chosen, without a random draw."""
        return self.top_k == 1

    def most_likely(self, logits: Float[Array, "N V"], seen: Seen) -> Int[Array, " N"]:
        """The most likely token of each row, of equal ones the first."""
        logits = self.penalized(logits, seen)
        if self.banned_ids:
            logits = logits.at[:, jnp.array(self.banned_ids)].set(-jnp.inf)
        return block_top_k(logits, 1)[1][:, 0]

    def truncated(self, logits: Float[Array, "N V"]) -> Float[Array, "N V"]:
        """Logits to sample from. A subclass may truncate them in another way."""
        return truncated_logits(logits, self.temperature, self.top_k, self.top_p, self.banned_ids)

    def choose(
        self, samples: Samples, logits: Float[Array, "N V"], hidden: Float[Array, "N D"] | None
    ) -> tuple[Int[Array, " N"], Any]:
        """Returns the next token of each row, and the state of a subclass after it.

        Args:
          hidden: final hidden states that the logits are of, for a search with `needs_hidden`.
        """
        if self.is_greedy:
            return self.most_likely(logits, samples.seen), samples.search_state
        draws = samples.drawn_before + samples.lengths
        step_keys = jax.vmap(jax.random.fold_in)(samples.keys, draws)
        truncated = self.truncated(self.penalized(logits, samples.seen))
        return jax.vmap(jax.random.categorical)(step_keys, truncated), samples.search_state

    def _draw(
        self, samples: Samples, logits: Float[Array, "N V"], hidden: Float[Array, "N D"] | None
    ) -> Samples:
        """Chooses a token for each sample."""
        tokens, search_state = self.choose(samples, logits, hidden)
        return self.add_tokens(samples, logits, tokens, search_state)

    def add_tokens(
        self,
        samples: Samples,
        logits: Float[Array, "N V"],
        chosen: Int[Array, " N"],
        search_state: Any = None,
    ) -> Samples:
        """Adds a token to each sample that has not ended; its log-probability is that of the
        logits. `search_state` is the state of a subclass after it."""
        rows = jnp.arange(len(logits))
        positions = samples.lengths
        tokens = jnp.where(samples.ended, self.pad_id, chosen)
        log_probs = jnp.where(samples.ended, 0.0, token_log_probs(logits, chosen))
        seen = samples.seen
        lengths = positions + ~samples.ended
        # A sample that has ended writes padding after its end, and nothing if that is at L.
        return dataclasses.replace(
            samples,
            lengths=lengths,
            tokens=samples.tokens.at[rows, positions].set(tokens, mode="drop"),
            log_probs=samples.log_probs.at[rows, positions].set(log_probs, mode="drop"),
            ended=samples.ended | (chosen == self.eos_id) | (lengths >= samples.limits),
            seen=None if seen is None else seen.at[rows, chosen].set(True),
            search_state=search_state,
        )
