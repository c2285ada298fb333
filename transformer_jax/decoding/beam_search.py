"""Beam search with a length penalty, as in section 6.1 of the paper.

Each step extends the alive hypotheses of a sentence by one token. The K best extensions by tokens
other than EOS are the next alive ones. An extension by EOS that is among the K best of all ends a
hypothesis, and the K best ended ones by score are kept. With K = 1 this is greedy search.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, N = B * K,
V vocabulary, L output length.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, State
from transformer_jax.decoding.state import of_parents, of_rows, of_sentences
from transformer_jax.decoding.top_k import top_k

SMALLEST_BATCH = 64
"""Sentences. Each size is compiled anew, for which the tenth saved with 32 of 64 was not enough."""


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What stays the same during a search."""

    beam_size: int
    num_outputs: int
    alpha: float
    eos_id: int
    forbidden_ids: tuple[int, ...]  # what no alive hypothesis holds; EOS is the first
    limits: jax.Array  # int32 [B]: longest output, EOS included


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Beams:
    """The hypotheses of every sentence, best first. An empty place has the value -inf."""

    alive_tokens: jax.Array  # int32 [B, J, L]
    alive_log_probs: jax.Array  # float32 [B, J]
    ended_tokens: jax.Array  # int32 [B, K, L]
    ended_scores: jax.Array  # float32 [B, K]
    done: jax.Array  # bool [B]: the result is certain


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
    """What the loop carries."""

    length: jax.Array  # int32 []: tokens in an alive hypothesis
    beams: _Beams
    state: State  # leaves [N, ...]


def beam_search(
    decode_step: DecodeStep,
    logits: jax.Array,
    memory: Memory,
    state: State,
    *,
    max_lengths: jax.Array,
    max_length: int,
    beam_size: int,
    num_outputs: int,
    alpha: float,
    eos_id: int,
    pad_id: int,
    banned_ids: tuple[int, ...] = (),
) -> Hypotheses:
    """Finds the `num_outputs` best outputs of every sentence; meant to be called under `jax.jit`.

    A score is log P(output) / `length_penalty`(length), where the length counts EOS. Hypotheses
    that ended come first; where fewer than `num_outputs` did, the best of those that the limit cut
    follow. A sentence is done as soon as no alive hypothesis can enter its result any more; with
    one beam, at its first EOS.

    Args:
        decode_step: the model's step, closed over its parameters; called L - 1 times at most, for
            ever fewer sentences.
        logits: [B, V] for the first token; this, `memory` and `state` are what `prefill` returned.
        memory: leaves led by B.
        state: leaves led by B; `decode_step` meets them led by N.
        max_lengths: int32 [B], the longest output of each sentence, EOS included, in 1..L.
        max_length: L, the length of the arrays returned.
        beam_size: K, at most V; 1 is greedy search.
        num_outputs: how many of the K to return; the fewer, the sooner they are certain.
        alpha: exponent of the length penalty, at least 0.
        eos_id: the token that ends an output.
        pad_id: the token that fills an output after its end.
        banned_ids: tokens never chosen. Scores stay the model's: no probability is redistributed.

    Raises:
        ValueError: `beam_size`, `num_outputs` or `alpha` is out of its range.
    """
    batch_size, vocab_size = logits.shape
    if not 1 <= beam_size <= vocab_size:
        raise ValueError(f"beam_size is {beam_size}; it must be in 1..{vocab_size} (vocabulary)")
    if not 1 <= num_outputs <= beam_size:
        raise ValueError(f"num_outputs is {num_outputs}; it must be in 1..{beam_size} (beam_size)")
    if not alpha >= 0:
        raise ValueError(f"alpha is {alpha}; it must be at least 0")
    limits = jnp.clip(max_lengths, 1, max_length)
    forbidden = tuple(dict.fromkeys((eos_id, *banned_ids)))
    rules = _Rules(beam_size, num_outputs, alpha, eos_id, forbidden, limits)
    start = _Search(jnp.int32(0), _start(batch_size, beam_size, max_length, pad_id), state)
    beams = _to_the_end(decode_step, rules, memory, _advance(rules, start, logits))
    return _n_best(rules, beams, pad_id)


def length_penalty(length: jax.Array, alpha: float) -> jax.Array:
    """((5 + length) / 6)^alpha: what divides log P in Wu et al. (2016), equation 14."""
    return ((5.0 + length) / 6.0) ** alpha


def _to_the_end(decode_step: DecodeStep, rules: _Rules, memory: Memory, search: _Search) -> _Beams:
    """Extends hypotheses until all sentences are done, and spends little on those that are: once
    half of a large batch is, the other half goes on alone."""
    batch_size = len(rules.limits)
    kept = batch_size // 2 if batch_size // 2 >= SMALLEST_BATCH else 0

    def step(search: _Search) -> _Search:
        last = jnp.take(search.beams.alive_tokens, search.length - 1, axis=2)  # [B, K]
        logits, state = decode_step(last.reshape(-1), memory, search.state)
        return _advance(rules, dataclasses.replace(search, state=state), logits)

    search = lax.while_loop(lambda search: (~search.beams.done).sum() > kept, step, search)
    if not kept:
        return search.beams
    chosen = jnp.argsort(search.beams.done)[:kept]  # all that are not done, and some that are
    rules = dataclasses.replace(rules, limits=rules.limits[chosen])
    rest = _Search(
        search.length,
        of_rows(search.beams, chosen),
        of_sentences(search.state, chosen, rules.beam_size),
    )
    beams = _to_the_end(decode_step, rules, of_rows(memory, chosen), rest)
    return jax.tree.map(lambda x, y: x.at[chosen].set(y), search.beams, beams)


def _start(batch_size: int, beam_size: int, max_length: int, pad_id: int) -> _Beams:
    """One empty alive hypothesis a sentence, and none that ended."""
    return _Beams(
        alive_tokens=jnp.full((batch_size, 1, max_length), pad_id, jnp.int32),
        alive_log_probs=jnp.zeros((batch_size, 1), jnp.float32),
        ended_tokens=jnp.full((batch_size, beam_size, max_length), pad_id, jnp.int32),
        ended_scores=jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32),
        done=jnp.zeros(batch_size, bool),
    )


def _advance(rules: _Rules, search: _Search, logits: jax.Array) -> _Search:
    """Adds a token to the hypotheses, given the logits [B * J, V] that follow each."""
    beams, length = search.beams, search.length
    num_parents = beams.alive_log_probs.shape[1]
    log_probs, parents, tokens, eos_log_probs = _extend(rules, beams.alive_log_probs, logits)
    ended_tokens, ended_scores = _keep_best(
        jnp.concatenate([beams.ended_tokens, _write(beams.alive_tokens, length, rules.eos_id)], 1),
        jnp.concatenate(
            [beams.ended_scores, eos_log_probs / length_penalty(length + 1, rules.alpha)], 1
        ),
        rules.beam_size,
    )
    extended = _Beams(
        alive_tokens=_write(_take(beams.alive_tokens, parents), length, tokens),
        alive_log_probs=log_probs,
        ended_tokens=ended_tokens,
        ended_scores=ended_scores,
        done=_is_done(rules, length + 1, log_probs, ended_scores),
    )
    return _Search(
        length=length + 1,
        beams=_where_rows(beams.done, beams, extended),
        state=of_parents(search.state, parents, num_parents),
    )


def _extend(rules: _Rules, log_probs: jax.Array, logits: jax.Array) -> tuple[jax.Array, ...]:
    """The best extensions of hypotheses [B, J] by a token.

    Returns:
        The log-probabilities, parents (which of J) and tokens [B, K] of the next alive hypotheses,
        and the log-probabilities [B, J] with EOS, -inf where that is not among the K best of all.
    """
    batch_size, num_beams = log_probs.shape
    ids = jnp.array(rules.forbidden_ids)
    forbidden, logits = logits[:, ids], logits.at[:, ids].set(-jnp.inf)
    values, tokens = top_k(logits, rules.beam_size)  # [B * J, K]
    highest = jnp.concatenate([values[:, :1], forbidden], axis=1).max(axis=1, keepdims=True)
    sums = (jnp.exp(x - highest).sum(axis=1, keepdims=True) for x in (logits, forbidden))
    normalizer = highest + jnp.log(sum(sums))  # subtracted from what is chosen alone
    values = log_probs[:, :, None] + (values - normalizer).reshape(batch_size, num_beams, -1)
    best, chosen = lax.top_k(values.reshape(batch_size, -1), rules.beam_size)  # [B, K]
    tokens = jnp.take_along_axis(tokens.reshape(batch_size, -1), chosen, axis=1)
    eos = log_probs + (forbidden[:, :1] - normalizer).reshape(batch_size, num_beams)
    kth_best = lax.top_k(jnp.concatenate([best, eos], axis=1), rules.beam_size)[0][:, -1:]
    return best, chosen // rules.beam_size, tokens, jnp.where(eos >= kth_best, eos, -jnp.inf)


def _is_done(
    rules: _Rules, length: jax.Array, log_probs: jax.Array, ended_scores: jax.Array
) -> jax.Array:
    """Whether nothing can change the result of a sentence, bool [B].

    A log-probability only falls and the penalty is largest at the limit, which bounds the score
    that an alive hypothesis can reach. One beam has nothing to weigh its first ending against.
    """
    best_reachable = log_probs[:, 0] / length_penalty(rules.limits, rules.alpha)
    worst_returned = ended_scores[:, rules.num_outputs - 1]
    done = (length >= rules.limits) | (best_reachable <= worst_returned)
    if rules.beam_size == 1:
        done |= ended_scores[:, 0] > -jnp.inf
    return done


def _n_best(rules: _Rules, beams: _Beams, pad_id: int) -> Hypotheses:
    """The ended hypotheses, then as many of those cut by the limit as places are left."""
    cut_scores = beams.alive_log_probs / length_penalty(rules.limits, rules.alpha)[:, None]
    num_ended = (beams.ended_scores > -jnp.inf).sum(axis=1, keepdims=True)
    rank = jnp.arange(rules.num_outputs)
    order = jnp.where(rank < num_ended, rank, rank - num_ended + rules.beam_size)  # [B, K]
    tokens = _take(jnp.concatenate([beams.ended_tokens, beams.alive_tokens], axis=1), order)
    scores = _take(jnp.concatenate([beams.ended_scores, cut_scores], axis=1), order)
    return Hypotheses(jnp.where(scores[:, :, None] > -jnp.inf, tokens, pad_id), scores)


def _keep_best(tokens: jax.Array, scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k best of hypotheses [B, ?, L], [B, ?]; of equal ones the first."""
    best, kept = lax.top_k(scores, k)
    return _take(tokens, kept), best


def _take(x: jax.Array, beams: jax.Array) -> jax.Array:
    """Picks beams [B, K] of x [B, ?, ...]."""
    return jnp.take_along_axis(x, beams.reshape(beams.shape + (1,) * (x.ndim - 2)), axis=1)


def _write(tokens: jax.Array, position: jax.Array, value: jax.Array | int) -> jax.Array:
    """Puts a token [B, J] or one for all at a position of tokens [B, J, L]."""
    return tokens.at[:, :, position].set(value)


def _where_rows(rows: jax.Array, x: _Beams, y: _Beams) -> _Beams:
    """x in the rows [B] that are true, y in the others."""
    return jax.tree.map(
        lambda a, b: jnp.where(rows.reshape((-1,) + (1,) * (b.ndim - 1)), a, b), x, y
    )
