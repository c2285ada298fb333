# SPDX-License-Identifier: Apache-2.0
"""Beam search with a length penalty (section 6.1 of the paper).

A step extends each alive hypothesis by one token. The K best extensions by tokens other than EOS
are the next alive hypotheses. An extension by EOS that is among the K best of all finishes a
hypothesis, and the K finished ones with the best scores, log P(output) / penalty(length), are kept.

Axes: B batch, K beam size, J alive hypotheses of a sentence before a step (1 before the first,
then K), N = B * J rows, V vocabulary, L output length.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from transformer_jax.decoding.interface import (
    DecodeStep,
    Hypotheses,
    Memory,
    Start,
    State,
    reorder_state,
    select_sentences,
    take_rows,
)

SMALLEST_BATCH = 64
"""Smallest batch to shrink to. Each size compiles again; going from 64 to 32 saved only 10%."""

TOP_K_BLOCK = 64
"""Columns of a block: the fastest of 32, 64, 128 and 256 on vocabularies of 8,000 and 32,000."""

Lengths = Num[Array | np.ndarray, "*shape"]
Penalties = Float[Array | np.ndarray, "*shape"]


def length_penalty(length: Lengths, alpha: float) -> Penalties:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


LENGTH_PENALTIES: dict[str, Callable[[Lengths, float], Penalties]] = {
    "gnmt": length_penalty,
    "power": lambda length, alpha: (1.0 * length) ** alpha,
}
"""Divisors of log P by value of `decode.length_penalty`: the paper's, and that of transformers,
length^alpha. With alpha = 1 that makes a score the mean log P of the output's tokens.

With "power", outputs cut at the length limit are ranked with the finished ones by score, otherwise
after all of them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Values that are constant during a search."""

    search: "BeamSearch" = dataclasses.field(metadata={"static": True})
    num_outputs: int = dataclasses.field(metadata={"static": True})
    limits: Array  # int32 [B]: longest output, EOS included

    def penalty(self, lengths: Int[Array, "*B"]) -> Float[Array, "*B"]:
        """Divisors of log P for outputs of these lengths."""
        search = self.search
        if search.num_forced:
            lengths = lengths + search.num_forced
        return jnp.asarray(LENGTH_PENALTIES[search.length_penalty](lengths, search.alpha))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beams:
    """Hypotheses of every sentence, best first. Empty places have the value -inf."""

    alive_tokens: Array  # int32 [B, J, L]
    alive_log_probs: Array  # float32 [B, J]
    finished_tokens: Array  # int32 [B, K, L]
    finished_scores: Array  # float32 [B, K]
    done: Array  # bool [B]: no further step can change the result


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carry:
    """State that a search carries from step to step."""

    lengths: Array  # int32 [B]: tokens in each alive hypothesis
    beams: Beams
    state: State  # the model's; leaves [B * J, ...]


type Searched = tuple[SearchSettings, Carry]
"""A search under way."""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Beam search of section 6.1, a `RefillableSearch`.

    Attributes:
      beam_size: K, hypotheses kept of each sentence, at most V; 1 is greedy search.
      alpha: exponent of the length penalty, at least 0.
      banned_ids: tokens that are never chosen. Scores are the model's: the probability of banned
        tokens is not redistributed.
      num_forced: tokens that every output has before the ones searched for, such as a language;
        they count in its length, as in transformers.
    """

    beam_size: int
    alpha: float
    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...] = ()
    length_penalty: str = "gnmt"
    num_forced: int = 0

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Finds the `num_outputs` best outputs of every sentence, at most K. Call it under
        `jax.jit`.

        The length in a score counts EOS. Finished hypotheses come first, unless the length penalty
        is "power"; the best hypotheses cut at the limit fill the places that are left. A sentence
        is done when no alive hypothesis can enter its result any more; with one beam, at
        its first EOS.
        """
        searched = self.open(start, num_outputs=num_outputs, max_length=max_length)
        return n_best(searched[0], self._run_until_done(searched, decode_step, start.memory))

    def open(self, start: Start, *, num_outputs: int, max_length: int) -> Searched:
        """Extends the empty hypotheses by their first token."""
        settings, carry = self.begin(start, num_outputs, max_length)
        return settings, advance(settings, carry, start.logits).after

    def run(
        self,
        searched: Searched,
        decode_step: DecodeStep,
        memory: Memory,
        most_left: Int[Array, ""] | int,
    ) -> Searched:
        """Runs steps until at most `most_left` sentences are not done."""
        settings, carry = searched

        def step(carry: Carry) -> Carry:
            logits, state = decode_step(last_tokens(carry), memory, carry.state)
            return advance(settings, dataclasses.replace(carry, state=state), logits).after

        def continues(carry: Carry) -> Array:
            return (~carry.beams.done).sum() > most_left

        return settings, lax.while_loop(continues, step, carry)

    def _run_until_done(self, searched: Searched, decode_step: DecodeStep, memory: Memory) -> Beams:
        """Runs steps until every sentence is done. When half of a large batch is done, it continues
        with the other half alone."""
        half = len(searched[0].limits) // 2
        most_left = half if half >= SMALLEST_BATCH else 0
        settings, carry = self.run(searched, decode_step, memory, most_left)
        if not most_left:
            return carry.beams
        # All that are not done. They may be fewer than half, but a program has fixed shapes.
        chosen = jnp.argsort(carry.beams.done)[:most_left]
        settings = dataclasses.replace(settings, limits=settings.limits[chosen])
        rest = Carry(
            carry.lengths[chosen],
            take_rows(carry.beams, chosen),
            select_sentences(carry.state, chosen, self.beam_size),
        )
        beams = self._run_until_done((settings, rest), decode_step, take_rows(memory, chosen))
        return jax.tree.map(lambda x, y: x.at[chosen].set(y), carry.beams, beams)

    def is_done(self, searched: Searched) -> Bool[Array, " B"]:
        return searched[1].beams.done

    def outputs(self, searched: Searched) -> Hypotheses:
        settings, carry = searched
        return n_best(settings, carry.beams)

    def begin(
        self, start: Start, num_outputs: int, max_length: int
    ) -> tuple[SearchSettings, Carry]:
        """Settings of a search and its first carry: one empty hypothesis for each sentence."""
        batch_size = len(start.logits)
        size = self.beam_size
        limits = jnp.clip(start.max_lengths, 1, max_length)
        settings = SearchSettings(self, num_outputs, limits)
        beams = Beams(
            alive_tokens=jnp.full((batch_size, 1, max_length), self.pad_id, jnp.int32),
            alive_log_probs=jnp.zeros((batch_size, 1), jnp.float32),
            finished_tokens=jnp.full((batch_size, size, max_length), self.pad_id, jnp.int32),
            finished_scores=jnp.full((batch_size, size), -jnp.inf, jnp.float32),
            done=jnp.zeros(batch_size, bool),
        )
        return settings, Carry(jnp.zeros(batch_size, jnp.int32), beams, start.state)


class Candidates(NamedTuple):
    """Best extensions of each alive hypothesis: by K tokens other than EOS, and by EOS."""

    tokens: Array  # int32 [B, J, K]
    log_probs: Array  # float32 [B, J, K], of the extended hypotheses
    eos_log_probs: Array  # float32 [B, J], of the hypotheses extended by EOS


class Extensions(NamedTuple):
    """Best extensions of a sentence, chosen from the candidates of all its hypotheses."""

    log_probs: Array  # float32 [B, K], of the next alive hypotheses
    parents: Array  # int32 [B, K], index in J of the hypothesis that each extends
    tokens: Array  # int32 [B, K], the new token of each
    eos_log_probs: Array  # float32 [B, J], by EOS; -inf if not among the K best extensions of all


class BeamStep(NamedTuple):
    """One step of a search."""

    candidates: Candidates
    best: Extensions
    after: Carry


def last_tokens(carry: Carry) -> Int[Array, " N"]:
    """Last token of every alive hypothesis; they must not be empty."""
    last = carry.lengths[:, None, None] - 1
    return jnp.take_along_axis(carry.beams.alive_tokens, last, axis=2).reshape(-1)


def advance(settings: SearchSettings, carry: Carry, logits: Float[Array, "N V"]) -> BeamStep:
    """Extends the hypotheses by a token, given the logits of the next token of each."""
    candidates = _candidates(settings, carry.beams.alive_log_probs, logits)
    best = _choose(settings, candidates)
    return BeamStep(candidates, best, _extend(settings, carry, best))


def _candidates(
    settings: SearchSettings, log_probs: Float[Array, "B J"], logits: Float[Array, "N V"]
) -> Candidates:
    """Best extensions of each hypothesis. The log-softmax's normalizer is subtracted from the
    chosen logits only."""
    batch_size, num_beams = log_probs.shape
    search = settings.search
    # No alive hypothesis has EOS or a banned token.
    ids = jnp.array(tuple(dict.fromkeys((search.eos_id, *search.banned_ids))))  # EOS first
    forbidden = logits[:, ids]
    logits = logits.at[:, ids].set(-jnp.inf)
    values, tokens = top_k(logits, search.beam_size)  # [B * J, K]
    # Not values[:, :1]: XLA would sort all candidates for two slices of `top_k`'s result.
    highest = jnp.concatenate([values, forbidden], axis=1).max(axis=1, keepdims=True)
    total, forbidden_total = (
        jnp.exp(x - highest).sum(axis=1, keepdims=True) for x in (logits, forbidden)
    )
    normalizer = highest + jnp.log(total + forbidden_total)
    by_parent = (batch_size, num_beams, -1)
    return Candidates(
        tokens=tokens.reshape(by_parent),
        log_probs=log_probs[:, :, None] + (values - normalizer).reshape(by_parent),
        eos_log_probs=log_probs + (forbidden[:, :1] - normalizer).reshape(batch_size, num_beams),
    )


def _choose(settings: SearchSettings, candidates: Candidates) -> Extensions:
    """Top-K extensions by tokens other than EOS, and the extensions by EOS that are among the
    overall top K."""
    tokens, values = (  # [B, J * K]
        x.reshape(len(x), -1) for x in (candidates.tokens, candidates.log_probs)
    )
    best, chosen = lax.top_k(values, settings.search.beam_size)  # [B, K]
    eos = candidates.eos_log_probs
    kth_best = lax.top_k(jnp.concatenate([best, eos], axis=1), settings.search.beam_size)[0][:, -1:]
    return Extensions(
        log_probs=best,
        parents=chosen // settings.search.beam_size,
        tokens=jnp.take_along_axis(tokens, chosen, axis=1),
        eos_log_probs=jnp.where(eos >= kth_best, eos, -jnp.inf),
    )


def _extend(settings: SearchSettings, carry: Carry, best: Extensions) -> Carry:
    """Carry after a step. Sentences that are done keep their hypotheses."""
    beams = carry.beams
    lengths = carry.lengths
    num_parents = beams.alive_log_probs.shape[1]  # J
    eos_scores = best.eos_log_probs / settings.penalty(lengths + 1)[:, None]
    with_eos = _set_token(beams.alive_tokens, lengths, settings.search.eos_id)
    finished_scores, best_finished = lax.top_k(
        jnp.concatenate([beams.finished_scores, eos_scores], axis=1), settings.search.beam_size
    )
    finished_tokens = jnp.concatenate([beams.finished_tokens, with_eos], axis=1)
    extended = Beams(
        alive_tokens=_set_token(_take(beams.alive_tokens, best.parents), lengths, best.tokens),
        alive_log_probs=best.log_probs,
        finished_tokens=_take(finished_tokens, best_finished),
        finished_scores=finished_scores,
        done=_is_done(settings, lengths + 1, best.log_probs, finished_scores),
    )

    def keep_if_done(old: Array, new: Array) -> Array:
        is_done = beams.done.reshape((-1,) + (1,) * (new.ndim - 1))
        return jnp.where(is_done, old, new)

    return Carry(
        lengths=lengths + ~beams.done,
        beams=jax.tree.map(keep_if_done, beams, extended),
        state=reorder_state(carry.state, best.parents, num_parents),
    )


def _is_done(
    settings: SearchSettings,
    lengths: Int[Array, " B"],
    log_probs: Float[Array, "B K"],
    finished_scores: Float[Array, "B K"],
) -> Bool[Array, " B"]:
    """Returns True for a sentence whose result no further step can change.

    A log-probability only falls, and the penalty is largest at the length limit: this bounds the
    score that an alive hypothesis can reach.
    """
    best_reachable = log_probs[:, 0] / settings.penalty(settings.limits)
    worst_returned = finished_scores[:, settings.num_outputs - 1]
    done = (lengths >= settings.limits) | (best_reachable <= worst_returned)
    if settings.search.beam_size == 1:
        done |= finished_scores[:, 0] > -jnp.inf
    return done


def n_best(settings: SearchSettings, beams: Beams) -> Hypotheses:
    """Best hypotheses of each sentence: the finished ones, then those cut at the limit; or, with
    the penalty "power", the best of both. (With one beam, a finished output was not cut.) Scores
    are NaN if logits were."""
    search = settings.search
    cut_scores = beams.alive_log_probs / settings.penalty(settings.limits)[:, None]
    scores = jnp.concatenate([beams.finished_scores, cut_scores], axis=1)
    if search.length_penalty == "power" and search.beam_size > 1:
        order = lax.top_k(scores, settings.num_outputs)[1]
    else:
        num_finished = (beams.finished_scores > -jnp.inf).sum(axis=1, keepdims=True)
        rank = jnp.arange(settings.num_outputs)
        # Finished hypotheses have the places 0 to K - 1, those that were cut the places from K on.
        order = jnp.where(rank < num_finished, rank, rank - num_finished + search.beam_size)
    tokens = _take(jnp.concatenate([beams.finished_tokens, beams.alive_tokens], axis=1), order)
    is_nan = jnp.isnan(beams.alive_log_probs).any(axis=1, keepdims=True)
    scores = jnp.where(is_nan, jnp.nan, _take(scores, order))
    return Hypotheses(jnp.where(scores[:, :, None] > -jnp.inf, tokens, search.pad_id), scores)


def _take(x: Shaped[Array, "B M ..."], indices: Int[Array, "B K"]) -> Shaped[Array, "B K ..."]:
    return jnp.take_along_axis(x, indices.reshape(indices.shape + (1,) * (x.ndim - 2)), axis=1)


def _set_token(
    tokens: Int[Array, "B J L"], positions: Int[Array, " B"], value: Int[Array, "B J"] | int
) -> Int[Array, "B J L"]:
    """Hypotheses with the token at a position of each sentence replaced."""
    is_there = jnp.arange(tokens.shape[2]) == positions[:, None, None]
    return jnp.where(is_there, jnp.asarray(value)[..., None], tokens)


def top_k(x: Float[Array, "N V"], k: int) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
    """Values and columns of the k largest of each row, as `jax.lax.top_k` returns them: of equal
    values the first comes first.

    Only the k blocks of columns with the largest maxima are searched: on a CPU `jax.lax.top_k`
    scans a vocabulary several times slower than a maximum does. There must be no NaN.
    """
    num_rows, num_columns = x.shape
    num_blocks = num_columns // TOP_K_BLOCK
    if num_blocks <= k:
        values, columns = lax.top_k(x, k)
        return values, columns
    in_blocks = num_blocks * TOP_K_BLOCK
    maxima = x[:, :in_blocks].reshape(num_rows, num_blocks, TOP_K_BLOCK).max(-1)
    # Candidates in the order of their columns, so that equal values keep that order.
    blocks = jnp.sort(lax.top_k(maxima, k)[1], axis=-1)
    columns = blocks[:, :, None] * TOP_K_BLOCK + jnp.arange(TOP_K_BLOCK)
    columns = columns.reshape(num_rows, k * TOP_K_BLOCK)
    rest = jnp.broadcast_to(jnp.arange(in_blocks, num_columns), (num_rows, num_columns - in_blocks))
    columns = jnp.concatenate([columns, rest], axis=1)  # [N, candidates]
    values, chosen = lax.top_k(jnp.take_along_axis(x, columns, axis=1), k)
    return values, jnp.take_along_axis(columns, chosen, axis=1)
