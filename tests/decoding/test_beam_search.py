# SPDX-License-Identifier: Apache-2.0
"""Beam search against slow reference searches, on toy models with known answers; top-k against
`jax.lax.top_k`."""

import itertools
from copy import copy

import jax
import numpy as np
import pytest

from tests.decoding.toy_models import BANNED, EOS, PAD, Historian, MarkovChain, log_softmax, score
from transformer_jax.decoding import BeamSearch, Start
from transformer_jax.decoding.beam_search import SMALLEST_BATCH, TOP_K_BLOCK, top_k


def compiled_search(model, *, max_length, beam_size, num_outputs=None, **options):
    """(logits, memory, state, max_lengths) -> hypotheses; by default as many as beams."""
    beams = BeamSearch(beam_size, eos_id=EOS, pad_id=PAD, **options)
    sizes = {"num_outputs": num_outputs or beam_size, "max_length": max_length}

    def run(logits, memory, state, max_lengths):
        start = Start(logits, memory, state, max_lengths, keys=None)
        return beams.find(model.decode_step, start, **sizes)

    return jax.jit(run)


def search(model, limits, **settings):
    run = compiled_search(model, **({"max_length": max(limits)} | settings))
    return jax.tree.map(np.asarray, run(*model.prefill(), max_lengths=np.array(limits)))


# Reference searches, one sentence at a time. They return lists of (score, tokens), best first.


def enumerate_all(model, sentence, limit, *penalty, forced=0):
    """Scores by output: of all outputs that end within the limit, and of all that it cuts."""
    ended, cut, words = {}, {}, range(EOS + 1, EOS + 1 + model.num_words)
    for length in range(1, limit + 1):
        for prefix in itertools.product(words, repeat=length - 1):
            for last in (EOS, *words) if length == limit else (EOS,):
                tokens = (*prefix, last)
                log_prob = sum(
                    log_softmax(model.logits_after(sentence, tokens[:i]))[token]
                    for i, token in enumerate(tokens)
                )
                (ended if last == EOS else cut)[tokens] = score(log_prob, forced + length, *penalty)
    return ended, cut


def slow_beam_search(model, sentence, limit, alpha, beam_size, banned=()):
    """Beam search that always runs to the limit."""
    alive, ended = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for log_prob, prefix in alive:
            log_probs = log_softmax(model.logits_after(sentence, prefix))
            candidates += [
                (log_prob + log_probs[token], (*prefix, token))
                for token in range(len(log_probs))
                if token not in banned
            ]
        candidates.sort(reverse=True)
        ended += [
            (score(log_prob, length, alpha), tokens)
            for log_prob, tokens in candidates[:beam_size]
            if tokens[-1] == EOS
        ]
        alive = [c for c in candidates if c[1][-1] != EOS][:beam_size]
    cut = [(score(log_prob, limit, alpha), tokens) for log_prob, tokens in alive]
    return (sorted(ended, reverse=True) + cut)[:beam_size]


def slow_greedy_search(model, sentence, limit, banned=()):
    tokens, log_prob = [], 0.0
    while len(tokens) < limit and EOS not in tokens:
        log_probs = log_softmax(model.logits_after(sentence, tokens))
        allowed = log_probs.copy()
        allowed[list(banned)] = -np.inf
        tokens.append(int(np.argmax(allowed)))
        log_prob += log_probs[tokens[-1]]
    return log_prob, tuple(tokens)


def assert_found(found, sentence, expected):
    """Checks the outputs of a sentence: tokens, order, padding and scores."""
    tokens, scores = found.tokens[sentence], found.scores[sentence]
    padded = [(*t, *[PAD] * (tokens.shape[1] - len(t))) for _, t in expected]
    np.testing.assert_array_equal(tokens[: len(expected)], padded)
    np.testing.assert_allclose(scores[: len(expected)], [s for s, _ in expected], 1e-5, 1e-6)


@pytest.mark.parametrize("forced, alpha, penalty", [(2, 0.6, "gnmt"), (0, 0.6, "power")])
def test_a_wide_beam_finds_what_enumeration_finds(forced, alpha, penalty):
    num_words, limit, batch_size = 4, 4, 6
    beam_size = (num_words + 1) * num_words ** (limit - 1)  # hypotheses at the limit
    model = MarkovChain(0, batch_size, num_words, vocab_size=beam_size)
    options = {"beam_size": beam_size, "alpha": alpha, "length_penalty": penalty}
    options["num_forced"] = forced
    found = search(model, [limit] * batch_size, **options)
    for sentence in range(batch_size):
        ended, cut = enumerate_all(model, sentence, limit, alpha, penalty, forced=forced)
        assert (len(ended), len(cut)) == (1 + 4 + 16 + 64, 256)
        best = sorted(ended.values(), reverse=True) + sorted(cut.values(), reverse=True)
        best = sorted(best, reverse=True) if penalty == "power" else best
        outputs = [tuple(t[t != PAD].tolist()) for t in found.tokens[sentence]]
        assert len(set(outputs)) == beam_size
        assert penalty == "power" or set(outputs[: len(ended)]) == set(ended)
        # Outputs with the same transitions in another order tie, so scores are compared.
        np.testing.assert_allclose([(ended | cut)[o] for o in outputs], best[:beam_size], rtol=1e-5)
        np.testing.assert_allclose(found.scores[sentence], best[:beam_size], rtol=1e-5)


def test_one_beam_is_greedy_search():
    model = Historian(3, batch_size=20, vocab_size=17, eos_bonus=np.linspace(0, 6, 20))
    found = search(model, [9] * 20, beam_size=1, alpha=3.0, banned_ids=BANNED)
    lengths = set()
    for sentence in range(20):
        log_prob, tokens = slow_greedy_search(model, sentence, 9, BANNED)
        assert_found(found, sentence, [(score(log_prob, len(tokens), 3.0), tokens)])
        lengths.add(len(tokens))
    assert len(lengths) > 4


@pytest.mark.parametrize(
    ("beam_size", "alpha", "vocab_size"), [(2, 0.6, 640), (4, 0.0, 17), (4, 3.0, 17)]
)
def test_equals_a_slow_search_that_never_stops_early(beam_size, alpha, vocab_size):
    """Banned tokens keep their probability, and each sentence has its own limit. The end of an
    output is not banned even if it is named."""
    limits = [1, 2, 3, 8] + 8 * [12]
    model = Historian(beam_size, len(limits), vocab_size, eos_bonus=3 * [0, 1, 3, 6])
    banned = (*BANNED, EOS)
    found = search(model, limits, beam_size=beam_size, alpha=alpha, banned_ids=banned)
    for sentence, limit in enumerate(limits):
        expected = slow_beam_search(model, sentence, limit, alpha, beam_size, BANNED)
        assert_found(found, sentence, expected)


def test_empty_places_have_score_minus_infinity_and_padding():
    model = MarkovChain(seed=0, batch_size=2, num_words=1, vocab_size=8)
    found = search(model, [2, 2], beam_size=4, alpha=0.6)
    word = EOS + 1
    assert {tuple(t) for t in found.tokens[0][:3]} == {(EOS, PAD), (word, EOS), (word, word)}
    assert np.isfinite(found.scores[:, :3]).all()
    assert (found.scores[:, 3] == -np.inf).all() and (found.tokens[:, 3] == PAD).all()


@pytest.mark.parametrize(("beam_size", "most_steps"), [(1, 2), (4, 30)])
def test_stops_when_no_hypothesis_can_enter_the_result(beam_size, most_steps):
    model, steps = Historian(10, batch_size=2, vocab_size=17), []

    step = model.decode_step

    def counted_step(*args):
        jax.debug.callback(lambda: steps.append(None))
        return step(*args)

    model.decode_step = counted_step
    settings = {"max_length": 100, "beam_size": beam_size, "alpha": 0.6, "banned_ids": BANNED}
    run = compiled_search(model, **settings)
    found = run(*model.prefill(), max_lengths=np.array([100, 100]))
    jax.effects_barrier()
    assert (found.tokens == EOS).any(axis=2).all()
    assert len(steps) <= most_steps


def test_when_half_of_a_large_batch_is_done_the_rest_continues_alone():
    beam_size, batch_size, sizes, rng = 4, 4 * SMALLEST_BATCH, [], np.random.default_rng(0)
    bonus = rng.permutation(np.linspace(-1, 9, batch_size))
    limits = rng.integers(15, 21, batch_size)
    model = Historian(11, batch_size, vocab_size=17, eos_bonus=bonus)
    settings = {"max_length": 20, "beam_size": beam_size, "alpha": 0.6, "banned_ids": BANNED}

    def counted_step(tokens, memory, state):
        jax.debug.callback(lambda: sizes.append(len(tokens) // beam_size))
        return model.decode_step(tokens, memory, state)

    counted = copy(model)
    counted.decode_step = counted_step
    together = search(counted, limits, **settings)
    jax.effects_barrier()
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes) == {batch_size, batch_size // 2, batch_size // 4}

    apart = compiled_search(model, **settings)
    for start in range(0, batch_size, SMALLEST_BATCH):
        rows = slice(start, start + SMALLEST_BATCH)
        found = apart(*model.prefill(rows), max_lengths=np.array(limits[rows]))
        np.testing.assert_array_equal(found.tokens, together.tokens[rows])
        # A score is a difference of logits near 10, summed up in an order that the size decides.
        np.testing.assert_allclose(found.scores, together.scores[rows], rtol=1e-6, atol=3e-6)


def test_fewer_outputs_are_the_best_of_all():
    model = Historian(4, batch_size=8, vocab_size=17, eos_bonus=np.linspace(0, 6, 8))
    settings = {"beam_size": 4, "alpha": 0.6, "banned_ids": BANNED}
    full = search(model, [12] * 8, **settings)
    found = search(model, [12] * 8, num_outputs=2, **settings)
    np.testing.assert_array_equal(found.tokens, full.tokens[:, :2])
    np.testing.assert_allclose(found.scores, full.scores[:, :2], rtol=1e-6)


LONG = 20 * TOP_K_BLOCK


def with_infinities(rng, num_columns):
    x = rng.normal(size=(6, num_columns)).astype(np.float32)
    x[:, 6] = 8.0
    x[:, [0, 5, num_columns - 1]] = -np.inf  # in the block of the best, too
    x[0] = -np.inf
    return x


RNG = np.random.default_rng(0)
CANDIDATES = [RNG.normal(size=(6, columns)) for columns in (7, LONG, LONG + 9)]
CANDIDATES += [RNG.integers(num_values, size=(8, LONG + 5)) for num_values in (2, 1000)]
CANDIDATES += [with_infinities(RNG, columns) for columns in (7, LONG + 9)]


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_equals_lax_top_k(k):
    """Equal values are in the order of their columns, and minus infinity is an ordinary value."""

    @jax.jit
    def both(x):
        return top_k(x, k), jax.lax.top_k(x, k)

    for x in CANDIDATES:
        found, expected = both(x.astype(np.float32))
        jax.tree.map(np.testing.assert_array_equal, tuple(found), tuple(expected))
