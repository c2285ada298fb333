"""Beam search with a length penalty, as in section 6.1 of the paper.

Each step extends the alive hypotheses of a sentence by one token. The K best extensions by tokens
other than EOS are the next alive ones. An extension by EOS that is among the K best of all ends a
hypothesis, and the K best ended ones by score are kept. With K = 1 this is greedy search.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, N = B * K,
V vocabulary, L output length.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.decoding.beams import Beams, keep_best, no_beams, take, where_rows, write
from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, Start, State
from transformer_jax.decoding.length_penalty import LENGTH_PENALTIES
from transformer_jax.decoding.state import of_parents, of_rows, of_sentences
from transformer_jax.decoding.top_k import top_k

SMALLEST_BATCH = 64
"""Smallest batch to shrink to. Each size compiles again; going from 64 to 32 saved only 10%."""


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What stays the same during a search."""

    beam_size: int
    num_outputs: int
    alpha: float
    length_penalty: str
    eos_id: int
    forbidden_ids: tuple[int, ...]  # what no alive hypothesis holds; EOS is the first
    limits: Array  # int32 [B]: longest output, EOS included

    def penalty(self, lengths: Int[Array, "*B"]) -> Float[Array, "*B"]:
        """What divides log P of outputs of these lengths."""
        return jnp.asarray(LENGTH_PENALTIES[self.length_penalty].of(lengths, self.alpha))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Carry:
    """What the loop carries from step to step."""

    length: Array  # int32 []: tokens in an alive hypothesis
    beams: Beams
    state: State  # leaves [N, ...]


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
        batch_size, vocab_size = start.logits.shape
        self._check(num_outputs, vocab_size)
        limits = jnp.clip(start.max_lengths, 1, max_length)
        forbidden = tuple(dict.fromkeys((self.eos_id, *self.banned_ids)))
        rules = _Rules(
            beam_size=self.beam_size,
            num_outputs=num_outputs,
            alpha=self.alpha,
            length_penalty=self.length_penalty,
            eos_id=self.eos_id,
            forbidden_ids=forbidden,
            limits=limits,
        )
        beams = no_beams(batch_size, self.beam_size, max_length, self.pad_id)
        first = _advance(rules, _Carry(jnp.int32(0), beams, start.state), start.logits)
        beams = _to_the_end(decode_step, rules, start.memory, first)
        return _n_best(rules, beams, self.pad_id)

    def _check(self, num_outputs: int, vocab_size: int) -> None:
        size = self.beam_size
        if not 1 <= size <= vocab_size:
            raise ValueError(f"beam_size is {size}; it must be in 1..{vocab_size} (vocabulary)")
        if not 1 <= num_outputs <= size:
            raise ValueError(f"num_outputs is {num_outputs}; it must be in 1..{size} (beam_size)")
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}; it must be at least 0")


def _to_the_end(decode_step: DecodeStep, rules: _Rules, memory: Memory, search: _Carry) -> Beams:
    """Extends hypotheses until all are done; once half of a large batch is, with the rest alone."""
    half = len(rules.limits) // 2
    kept = half if half >= SMALLEST_BATCH else 0

    def step(search: _Carry) -> _Carry:
        last = jnp.take(search.beams.alive_tokens, search.length - 1, axis=2)  # [B, K]
        logits, state = decode_step(last.reshape(-1), memory, search.state)
        return _advance(rules, dataclasses.replace(search, state=state), logits)

    search = lax.while_loop(lambda search: (~search.beams.done).sum() > kept, step, search)
    if not kept:
        return search.beams
    chosen = jnp.argsort(search.beams.done)[:kept]  # all that are not done, and some that are
    rules = dataclasses.replace(rules, limits=rules.limits[chosen])
    rest = _Carry(
        search.length,
        of_rows(search.beams, chosen),
        of_sentences(search.state, chosen, rules.beam_size),
    )
    beams = _to_the_end(decode_step, rules, of_rows(memory, chosen), rest)
    return jax.tree.map(lambda x, y: x.at[chosen].set(y), search.beams, beams)


def _advance(rules: _Rules, search: _Carry, logits: Float[Array, "N V"]) -> _Carry:
    """Adds a token to the hypotheses, given the logits of the token after each."""
    beams, length = search.beams, search.length
    num_parents = beams.alive_log_probs.shape[1]
    best = _extend(rules, beams.alive_log_probs, logits)
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
    return _Carry(
        length=length + 1,
        beams=where_rows(beams.done, beams, extended),
        state=of_parents(search.state, best.parents, num_parents),
    )


class _Extensions(NamedTuple):
    """The best extensions of the alive hypotheses by a token."""

    log_probs: Array  # float32 [B, K], of the next alive hypotheses
    parents: Array  # int32 [B, K], which of J each extends
    tokens: Array  # int32 [B, K], by which
    eos_log_probs: Array  # float32 [B, J], with EOS; -inf where not among the K best of all


def _extend(
    rules: _Rules, log_probs: Float[Array, "B J"], logits: Float[Array, "N V"]
) -> _Extensions:
    batch_size, num_beams = log_probs.shape
    ids = jnp.array(rules.forbidden_ids)
    forbidden, logits = logits[:, ids], logits.at[:, ids].set(-jnp.inf)
    values, tokens = top_k(logits, rules.beam_size)  # [B * J, K]
    highest = jnp.concatenate([values[:, :1], forbidden], axis=1).max(axis=1, keepdims=True)
    total, of_forbidden = (
        jnp.exp(x - highest).sum(axis=1, keepdims=True) for x in (logits, forbidden)
    )
    normalizer = highest + jnp.log(total + of_forbidden)  # subtracted from what is chosen alone
    values = log_probs[:, :, None] + (values - normalizer).reshape(batch_size, num_beams, -1)
    best, chosen = lax.top_k(values.reshape(batch_size, -1), rules.beam_size)  # [B, K]
    tokens = jnp.take_along_axis(tokens.reshape(batch_size, -1), chosen, axis=1)
    eos = log_probs + (forbidden[:, :1] - normalizer).reshape(batch_size, num_beams)
    kth_best = lax.top_k(jnp.concatenate([best, eos], axis=1), rules.beam_size)[0][:, -1:]
    eos = jnp.where(eos >= kth_best, eos, -jnp.inf)
    return _Extensions(best, chosen // rules.beam_size, tokens, eos)


def _is_done(
    rules: _Rules,
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


def _n_best(rules: _Rules, beams: Beams, pad_id: int) -> Hypotheses:
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
    return Hypotheses(jnp.where(scores[:, :, None] > -jnp.inf, tokens, pad_id), scores)
