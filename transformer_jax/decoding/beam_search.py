"""Beam search with a length penalty, as in section 6.1 of the paper.

Each step extends the alive hypotheses of a sentence by one token. The K best extensions by tokens
other than EOS are the next alive ones. An extension by EOS that is among the K best of all ends a
hypothesis, and the K best ended ones by score are kept. With K = 1 this is greedy search.
`beam_steps` is what happens in a step, `beam_tree` a record of all of them.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, N = B * K,
V vocabulary, L output length.
"""

import dataclasses
import functools
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
    of_parents,
    of_rows,
    of_sentences,
)

# FOLDED decoding.beams: The hypotheses of a beam search as arrays, and what is done with them.
# Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, V vocabulary, L
# output length.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beams:
    """The hypotheses of every sentence, best first. An empty place has the value -inf."""

    alive_tokens: Array  # int32 [B, J, L]
    alive_log_probs: Array  # float32 [B, J]
    ended_tokens: Array  # int32 [B, K, L]
    ended_scores: Array  # float32 [B, K]
    done: Array  # bool [B]: the result is certain


def no_beams(batch_size: int, beam_size: int, max_length: int, pad_id: int) -> Beams:
    """One empty alive hypothesis for each sentence, and none that ended."""
    return Beams(
        alive_tokens=jnp.full((batch_size, 1, max_length), pad_id, jnp.int32),
        alive_log_probs=jnp.zeros((batch_size, 1), jnp.float32),
        ended_tokens=jnp.full((batch_size, beam_size, max_length), pad_id, jnp.int32),
        ended_scores=jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32),
        done=jnp.zeros(batch_size, bool),
    )


def keep_best(
    tokens: Int[Array, "B M L"], scores: Float[Array, "B M"], k: int
) -> tuple[Int[Array, "B K L"], Float[Array, "B K"]]:
    """The k best of M hypotheses; of equal ones the first."""
    best, kept = lax.top_k(scores, k)
    return take(tokens, kept), best


def take(x: Shaped[Array, "B M ..."], beams: Int[Array, "B K"]) -> Shaped[Array, "B K ..."]:
    """Picks the numbered ones among M beams."""
    return jnp.take_along_axis(x, beams.reshape(beams.shape + (1,) * (x.ndim - 2)), axis=1)


def write(
    tokens: Int[Array, "B J L"], position: Int[Array, ""], value: Int[Array, "B J"] | int
) -> Int[Array, "B J L"]:
    """Puts a token of each hypothesis, or one for all, at a position."""
    return tokens.at[:, :, position].set(value)


def where_rows(rows: Bool[Array, " B"], x: Beams, y: Beams) -> Beams:
    """x in the rows that are true, y in the others."""
    return jax.tree.map(
        lambda a, b: jnp.where(rows.reshape((-1,) + (1,) * (b.ndim - 1)), a, b), x, y
    )


# FOLDED decoding.length_penalty: The length penalty of beam search (section 6.1): what divides log
# P of an output.


Lengths = Num[Array | np.ndarray, "*shape"]
Penalties = Float[Array | np.ndarray, "*shape"]


def length_penalty(length: Lengths, alpha: float) -> Penalties:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def power_of_length(length: Lengths, alpha: float) -> Penalties:
    """length^alpha; with alpha 1 an output is scored by the mean log P of its tokens."""
    return (1.0 * length) ** alpha


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    """How outputs of different lengths are compared.

    Attributes:
      of: (lengths, alpha) -> what divides log P.
      cut_compete: whether outputs that the length limit cut are compared with those that ended;
        otherwise they stand behind all of these.
    """

    of: Callable[[Lengths, float], Penalties]
    cut_compete: bool = False


LENGTH_PENALTIES = {
    "gnmt": LengthPenalty(length_penalty),
    "power": LengthPenalty(power_of_length, cut_compete=True),
}
"""What `decode.length_penalty` may name: the paper's, and that of transformers."""


# FOLDED decoding.top_k: The k largest of many, by the maxima of blocks. On the CPU `jax.lax.top_k`
# and `jnp.argmax` scan a vocabulary several times slower than a plain maximum does. The k largest
# lie in the k blocks with the largest maxima, so only those are searched. Axes: N rows, V columns,
# C candidate columns.


BLOCK = 64  # columns; measured best of 32, 64, 128 and 256 on vocabularies of 8,000 and 32,000


def top_k(x: Float[Array, "N V"], k: int) -> tuple[Float[Array, "N k"], Int[Array, "N k"]]:
    """Values and columns as `jax.lax.top_k` returns them: of equal values the first comes first.

    Args:
      x: without NaN.
      k: how many, at most V.
    """
    num_rows, num_columns = x.shape
    num_blocks = num_columns // BLOCK
    if num_blocks <= k:
        values, columns = lax.top_k(x, k)
        return values, columns
    in_blocks = num_blocks * BLOCK
    maxima = x[:, :in_blocks].reshape(num_rows, num_blocks, BLOCK).max(-1)
    # Candidates in the order of their columns, so that equal values keep that order.
    blocks = jnp.sort(lax.top_k(maxima, k)[1], axis=-1)
    columns = (blocks[:, :, None] * BLOCK + jnp.arange(BLOCK)).reshape(num_rows, k * BLOCK)
    rest = jnp.broadcast_to(jnp.arange(in_blocks, num_columns), (num_rows, num_columns - in_blocks))
    columns = jnp.concatenate([columns, rest], axis=1)  # [N, C]
    values, chosen = lax.top_k(jnp.take_along_axis(x, columns, axis=1), k)
    return values, jnp.take_along_axis(columns, chosen, axis=1)


# FOLDED decoding.beam_steps: One step of a beam search: what extends the hypotheses, which of it
# is kept, and what is found. Axes: B batch, J beams before a step (1 at the first, then K), K
# beams after it, N = B * J rows before it, V vocabulary, L output length.


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["limits"],
    meta_fields=[
        *("beam_size", "num_outputs", "alpha", "length_penalty"),
        *("eos_id", "pad_id", "forbidden_ids"),
    ],
)
@dataclasses.dataclass(frozen=True)
class Rules:
    """What stays the same during a search."""

    beam_size: int
    num_outputs: int
    alpha: float
    length_penalty: str
    eos_id: int
    pad_id: int
    forbidden_ids: tuple[int, ...]  # what no alive hypothesis holds; EOS is the first
    limits: Array  # int32 [B]: longest output, EOS included

    def penalty(self, lengths: Int[Array, "*B"]) -> Float[Array, "*B"]:
        """What divides log P of outputs of these lengths."""
        return jnp.asarray(LENGTH_PENALTIES[self.length_penalty].of(lengths, self.alpha))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Carry:
    """What a search carries from step to step."""

    length: Array  # int32 []: tokens in an alive hypothesis
    beams: Beams
    state: State  # leaves [B * K, ...]


class Candidates(NamedTuple):
    """What the alive hypotheses may become: the K best extensions of each by a token, and its
    end."""

    tokens: Array  # int32 [B, J, K], other than EOS
    log_probs: Array  # float32 [B, J, K], of the extended hypotheses
    eos_log_probs: Array  # float32 [B, J], of the ended ones


class Extensions(NamedTuple):
    """The best of the candidates."""

    log_probs: Array  # float32 [B, K], of the next alive hypotheses
    parents: Array  # int32 [B, K], which of J each extends
    tokens: Array  # int32 [B, K], by which
    eos_log_probs: Array  # float32 [B, J], with EOS; -inf where not among the K best of all


class BeamStep(NamedTuple):
    """A step of the search."""

    seen: Candidates
    best: Extensions
    after: Carry


def last_tokens(search: Carry) -> Int[Array, " N"]:
    """The last token of every alive hypothesis, of which there is one."""
    return jnp.take(search.beams.alive_tokens, search.length - 1, axis=2).reshape(-1)


def advance(rules: Rules, search: Carry, logits: Float[Array, "N V"]) -> BeamStep:
    """Adds a token to the hypotheses, given the logits of the token after each."""
    seen = _candidates(rules, search.beams.alive_log_probs, logits)
    best = _choose(rules, seen)
    return BeamStep(seen, best, _extend(rules, search, best))


def _candidates(
    rules: Rules, log_probs: Float[Array, "B J"], logits: Float[Array, "N V"]
) -> Candidates:
    batch_size, num_beams = log_probs.shape
    ids = jnp.array(rules.forbidden_ids)
    forbidden, logits = logits[:, ids], logits.at[:, ids].set(-jnp.inf)
    values, tokens = top_k(logits, rules.beam_size)  # [B * J, K]
    highest = jnp.concatenate([values[:, :1], forbidden], axis=1).max(axis=1, keepdims=True)
    total, of_forbidden = (
        jnp.exp(x - highest).sum(axis=1, keepdims=True) for x in (logits, forbidden)
    )
    normalizer = highest + jnp.log(total + of_forbidden)  # subtracted from what is chosen alone
    by_parent = (batch_size, num_beams, -1)
    return Candidates(
        tokens=tokens.reshape(by_parent),
        log_probs=log_probs[:, :, None] + (values - normalizer).reshape(by_parent),
        eos_log_probs=log_probs + (forbidden[:, :1] - normalizer).reshape(batch_size, num_beams),
    )


def _choose(rules: Rules, seen: Candidates) -> Extensions:
    """The K best that go on, and the ends that are among the K best of all."""
    tokens, values = (x.reshape(len(x), -1) for x in (seen.tokens, seen.log_probs))  # [B, J * K]
    best, chosen = lax.top_k(values, rules.beam_size)  # [B, K]
    eos = seen.eos_log_probs
    kth_best = lax.top_k(jnp.concatenate([best, eos], axis=1), rules.beam_size)[0][:, -1:]
    return Extensions(
        log_probs=best,
        parents=chosen // rules.beam_size,
        tokens=jnp.take_along_axis(tokens, chosen, axis=1),
        eos_log_probs=jnp.where(eos >= kth_best, eos, -jnp.inf),
    )


def _extend(rules: Rules, search: Carry, best: Extensions) -> Carry:
    beams, length = search.beams, search.length
    num_parents = beams.alive_log_probs.shape[1]
    eos_scores = best.eos_log_probs / rules.penalty(length + 1)
    ended_tokens, ended_scores = keep_best(
        jnp.concatenate([beams.ended_tokens, write(beams.alive_tokens, length, rules.eos_id)], 1),
        jnp.concatenate([beams.ended_scores, eos_scores], 1),
        rules.beam_size,
    )
    extended = Beams(
        alive_tokens=write(take(beams.alive_tokens, best.parents), length, best.tokens),
        alive_log_probs=best.log_probs,
        ended_tokens=ended_tokens,
        ended_scores=ended_scores,
        done=_is_done(rules, length + 1, best.log_probs, ended_scores),
    )
    return Carry(
        length=length + 1,
        beams=where_rows(beams.done, beams, extended),
        state=of_parents(search.state, best.parents, num_parents),
    )


def _is_done(
    rules: Rules,
    length: Int[Array, ""],
    log_probs: Float[Array, "B K"],
    ended_scores: Float[Array, "B K"],
) -> Bool[Array, " B"]:
    """Whether nothing can change the result of a sentence.

    A log-probability only falls and the penalty is largest at the limit, which bounds the score
    that an alive hypothesis can reach. One beam has nothing to weigh its first ending against.
    """
    best_reachable = log_probs[:, 0] / rules.penalty(rules.limits)
    worst_returned = ended_scores[:, rules.num_outputs - 1]
    done = (length >= rules.limits) | (best_reachable <= worst_returned)
    if rules.beam_size == 1:
        done |= ended_scores[:, 0] > -jnp.inf
    return done


def n_best(rules: Rules, beams: Beams) -> Hypotheses:
    """The best hypotheses: those that ended, then as many of those that the limit cut as places are
    left; or the best of both together. (One beam that ended was not cut.)"""
    cut_scores = beams.alive_log_probs / rules.penalty(rules.limits)[:, None]
    scores = jnp.concatenate([beams.ended_scores, cut_scores], axis=1)
    if LENGTH_PENALTIES[rules.length_penalty].cut_compete and rules.beam_size > 1:
        order = lax.top_k(scores, rules.num_outputs)[1]
    else:
        num_ended = (beams.ended_scores > -jnp.inf).sum(axis=1, keepdims=True)
        rank = jnp.arange(rules.num_outputs)
        order = jnp.where(rank < num_ended, rank, rank - num_ended + rules.beam_size)  # [B, K]
    tokens = take(jnp.concatenate([beams.ended_tokens, beams.alive_tokens], axis=1), order)
    scores = take(scores, order)
    return Hypotheses(jnp.where(scores[:, :, None] > -jnp.inf, tokens, rules.pad_id), scores)


SMALLEST_BATCH = 64
"""Smallest batch to shrink to. Each size compiles again; going from 64 to 32 saved only 10%."""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The beam search of section 6.1, a `Search`.

    Attributes:
      beam_size: hypotheses K kept of a sentence, at most V; 1 is greedy search.
      alpha: exponent of the length penalty, at least 0.
      eos_id: the token that ends an output.
      pad_id: the token that fills an output after its end.
      banned_ids: tokens never chosen. Scores stay the model's: no probability is redistributed.
      length_penalty: an entry of `LENGTH_PENALTIES`.
    """

    beam_size: int
    alpha: float
    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...] = ()
    length_penalty: str = "gnmt"

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Finds the `num_outputs` best outputs of every sentence; meant to be called under
        `jax.jit`.

        A score is log P(output) / penalty(length), where the length counts EOS. Hypotheses that
        ended come first, unless the penalty says otherwise; where fewer than `num_outputs` did, the
        best of those that the limit cut follow. A sentence is done as soon as no alive hypothesis
        can enter its result any more; with one beam, at its first EOS.

        Args:
          decode_step: the model's step, closed over its parameters; called at most L - 1 times, for
            ever fewer sentences.
          start: what `prefill` returned, and the limits; its keys are not used.
          num_outputs: how many of the K to return; the fewer, the sooner they are certain.
          max_length: L, the length of the arrays returned.

        Raises:
          ValueError: `beam_size`, `num_outputs` or `alpha` is out of its range.
        """
        rules, search = self.begin(start, num_outputs, max_length)
        first = advance(rules, search, start.logits).after
        return n_best(rules, _to_the_end(decode_step, rules, start.memory, first))

    def begin(self, start: Start, num_outputs: int, max_length: int) -> tuple[Rules, Carry]:
        """What `beam_steps` goes by and from: for each sentence one empty hypothesis. Arguments and
        errors as of `find`."""
        batch_size, vocab_size = start.logits.shape
        self._check(num_outputs, vocab_size)
        rules = Rules(
            beam_size=self.beam_size,
            num_outputs=num_outputs,
            alpha=self.alpha,
            length_penalty=self.length_penalty,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            forbidden_ids=tuple(dict.fromkeys((self.eos_id, *self.banned_ids))),
            limits=jnp.clip(start.max_lengths, 1, max_length),
        )
        beams = no_beams(batch_size, self.beam_size, max_length, self.pad_id)
        return rules, Carry(jnp.int32(0), beams, start.state)

    def _check(self, num_outputs: int, vocab_size: int) -> None:
        size = self.beam_size
        if not 1 <= size <= vocab_size:
            raise ValueError(f"beam_size is {size}; it must be in 1..{vocab_size} (vocabulary)")
        if not 1 <= num_outputs <= size:
            raise ValueError(f"num_outputs is {num_outputs}; it must be in 1..{size} (beam_size)")
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}; it must be at least 0")


def _to_the_end(decode_step: DecodeStep, rules: Rules, memory: Memory, search: Carry) -> Beams:
    """Extends hypotheses until all are done; once half of a large batch is, with the rest alone."""
    half = len(rules.limits) // 2
    kept = half if half >= SMALLEST_BATCH else 0

    def step(search: Carry) -> Carry:
        logits, state = decode_step(last_tokens(search), memory, search.state)
        return advance(rules, dataclasses.replace(search, state=state), logits).after

    search = lax.while_loop(lambda search: (~search.beams.done).sum() > kept, step, search)
    if not kept:
        return search.beams
    chosen = jnp.argsort(search.beams.done)[:kept]  # all that are not done, and some that are
    rules = dataclasses.replace(rules, limits=rules.limits[chosen])
    rest = Carry(
        search.length,
        of_rows(search.beams, chosen),
        of_sentences(search.state, chosen, rules.beam_size),
    )
    beams = _to_the_end(decode_step, rules, of_rows(memory, chosen), rest)
    return jax.tree.map(lambda x, y: x.at[chosen].set(y), search.beams, beams)
