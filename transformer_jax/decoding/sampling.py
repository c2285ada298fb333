# SPDX-License-Identifier: Apache-2.0
"""Sampling with temperature, top-k, top-p and a repetition penalty.

Axes: B batch, n samples of a sentence, N = B * n rows, V vocabulary, L output length.
"""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.beam_search import top_k as block_top_k
from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, Start, State


def penalized_logits(
    logits: Float[Array, "N V"], seen: Bool[Array, "N V"], penalty: float
) -> Float[Array, "N V"]:
    """Logits with the repetition penalty applied to the tokens seen: positive ones are divided by
    it, negative ones multiplied (Keskar et al. 2019, section 4.1)."""
    penalized = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(seen, penalized, logits)


def truncated_logits(
    logits: Float[Array, "N V"],
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    banned_ids: tuple[int, ...] = (),
) -> Float[Array, "N V"]:
    """Logits to sample from; -inf for tokens that cannot be sampled.

    Args:
      logits: the model's.
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
    above, equal = logits > least, logits == least
    room = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, axis=-1) <= room))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Samples:
    """Samples, possibly unfinished.

    Attributes:
      length: int32 [], tokens of a sample that has not ended.
      tokens: int32 [N, L], padded.
      log_probs: float32 [N, L], log-probability of each token under the model itself, in nats; 0
        after the end.
      ended: bool [N].
      limits: int32 [N], longest output of each, in 1..L.
      keys: [N], a random key for each.
      drawn_before: int32 [], tokens that were sampled with these keys before the first one here.
      seen: bool [N, V], tokens that occurred so far, if repetition is penalized; otherwise None.
      state: the model's.
    """

    length: Array
    tokens: Array
    log_probs: Array
    ended: Array
    limits: Array
    keys: Array
    drawn_before: Array
    seen: Array | None
    state: State


@runtime_checkable
class StepwiseSearch(Protocol):
    """A search that can pause every few tokens, with one row for each output.

    Language models need one: between two calls their outputs are streamed, cut at stop texts, and
    given a new context when they outgrow the model's. It must be hashable, like every `Search`.
    """

    def begin(
        self,
        start: Start,
        *,
        max_length: int,
        drawn_before: Int[Array, ""] | int = 0,
        seen: Bool[Array, "N V"] | None = None,
    ) -> Samples:
        """Chooses the first token of each output.

        Args:
          start: inputs with a row for each output, B = N.
          max_length: L.
          drawn_before, seen: see `Samples`.
        """

    def extend(
        self,
        samples: Samples,
        decode_step: DecodeStep,
        memory: Memory,
        length: Int[Array, ""] | int,
    ) -> Samples:
        """Chooses tokens until the outputs have `length` of them or have all ended."""


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Samples tokens from the model's distribution: a `Search` and a `StepwiseSearch`.

    Attributes:
      temperature, top_k, top_p: see `truncated_logits`.
      eos_id: token that ends an output.
      pad_id: token that fills an output after its end.
      banned_ids: tokens that are never chosen.
      repetition_penalty: penalty of tokens that occurred before, see `penalized_logits`; 1: none.
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

        def repeated(x: Array) -> Array:  # [B, ...] -> [N, ...]
            return jnp.repeat(x, num_outputs, axis=0)

        keys = jax.vmap(lambda key: jax.random.split(key, num_outputs))(start.keys).reshape(-1)
        each = Start(
            repeated(start.logits),
            start.memory,
            jax.tree.map(repeated, start.state),
            repeated(start.max_lengths),
            keys,
        )
        first = self.begin(each, max_length=max_length)
        last = self.extend(first, decode_step, start.memory, max_length)
        tokens = last.tokens.reshape(-1, num_outputs, max_length)
        sums = last.log_probs.sum(axis=1).reshape(-1, num_outputs)
        scores, order = lax.top_k(sums, num_outputs)
        return Hypotheses(jnp.take_along_axis(tokens, order[:, :, None], axis=1), scores)

    def begin(
        self,
        start: Start,
        *,
        max_length: int,
        drawn_before: Int[Array, ""] | int = 0,
        seen: Bool[Array, "N V"] | None = None,
    ) -> Samples:
        """Chooses the first token of each output."""
        rows = start.logits.shape[0]
        samples = Samples(
            length=jnp.int32(0),
            tokens=jnp.full((rows, max_length), self.pad_id, jnp.int32),
            log_probs=jnp.zeros((rows, max_length)),
            ended=jnp.zeros(rows, bool),
            limits=jnp.clip(start.max_lengths, 1, max_length),
            keys=start.keys,
            drawn_before=jnp.int32(drawn_before),
            seen=seen,
            state=start.state,
        )
        return self._draw(samples, start.logits)

    def extend(
        self,
        samples: Samples,
        decode_step: DecodeStep,
        memory: Memory,
        length: Int[Array, ""] | int,
    ) -> Samples:
        """Chooses tokens until the outputs have `length` of them or have all ended."""

        def step(samples: Samples) -> Samples:
            last = jnp.take(samples.tokens, samples.length - 1, axis=1)
            logits, state = decode_step(last, memory, samples.state)
            return self._draw(dataclasses.replace(samples, state=state), logits)

        def unfinished(samples: Samples) -> Bool[Array, ""]:
            return (samples.length < length) & ~samples.ended.all()

        return lax.while_loop(unfinished, step, samples)

    def truncated(self, logits: Float[Array, "N V"]) -> Float[Array, "N V"]:
        """Logits to sample from. A subclass may truncate them in another way."""
        return truncated_logits(logits, self.temperature, self.top_k, self.top_p, self.banned_ids)

    def _draw(self, samples: Samples, logits: Float[Array, "N V"]) -> Samples:
        """Adds a token to each sample that has not ended."""
        position = samples.length
        penalized = logits
        if samples.seen is not None:
            penalized = penalized_logits(logits, samples.seen, self.repetition_penalty)
        truncated = self.truncated(penalized)
        draw = samples.drawn_before + position
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(samples.keys, draw)
        chosen = jax.vmap(jax.random.categorical)(step_keys, truncated)
        log_probs = jax.nn.log_softmax(logits)
        chosen_log_probs = jnp.take_along_axis(log_probs, chosen[:, None], axis=1)[:, 0]
        tokens = jnp.where(samples.ended, self.pad_id, chosen)
        chosen_log_probs = jnp.where(samples.ended, 0.0, chosen_log_probs)
        seen = samples.seen
        return dataclasses.replace(
            samples,
            length=position + 1,
            tokens=samples.tokens.at[:, position].set(tokens),
            log_probs=samples.log_probs.at[:, position].set(chosen_log_probs),
            ended=samples.ended | (chosen == self.eos_id) | (position + 1 >= samples.limits),
            seen=None if seen is None else seen.at[jnp.arange(len(seen)), chosen].set(True),
        )
