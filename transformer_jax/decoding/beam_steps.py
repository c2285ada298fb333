"""One step of a beam search: what extends the hypotheses, which of it is kept, and what is found.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, N = B * J rows
before it, V vocabulary, L output length.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.beams import Beams, keep_best, take, where_rows, write
from transformer_jax.decoding.interface import Hypotheses, State
from transformer_jax.decoding.length_penalty import LENGTH_PENALTIES
from transformer_jax.decoding.state import of_parents
from transformer_jax.decoding.top_k import top_k


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


class Step(NamedTuple):
    """A step of the search."""

    seen: Candidates
    best: Extensions
    after: Carry


def last_tokens(search: Carry) -> Int[Array, " N"]:
    """The last token of every alive hypothesis, of which there is one."""
    return jnp.take(search.beams.alive_tokens, search.length - 1, axis=2).reshape(-1)


def advance(rules: Rules, search: Carry, logits: Float[Array, "N V"]) -> Step:
    """Adds a token to the hypotheses, given the logits of the token after each."""
    seen = _candidates(rules, search.beams.alive_log_probs, logits)
    best = _choose(rules, seen)
    return Step(seen, best, _extend(rules, search, best))


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
