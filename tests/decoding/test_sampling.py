# SPDX-License-Identifier: Apache-2.0
"""Samples follow the requested distribution, and depend on each sentence's own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.decoding import Sampler, Start, truncated_logits

PAD, UNK, BOS, EOS = range(4)
VOCAB = 8
TABLE = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
"""Logits of the next token given the last: a random Markov chain."""


def decode_step(tokens, memory, state):
    return jnp.array(TABLE)[tokens], state + 1


def draw(sentences, num_outputs, max_length=4, first_key=0, **options):
    options = {"temperature": 1.0, "top_k": None, "top_p": None} | options
    sampler = Sampler(eos_id=EOS, pad_id=PAD, banned_ids=(PAD, UNK, BOS), **options)
    logits, limits = jnp.tile(TABLE[BOS], (sentences, 1)), jnp.full(sentences, max_length)

    @jax.jit
    def find(keys):
        start = Start(logits, (), jnp.zeros(sentences), limits, keys)
        return sampler.find(decode_step, start, num_outputs=num_outputs, max_length=max_length)

    found = find(jax.vmap(jax.random.key)(jnp.arange(sentences) + first_key))
    return np.asarray(found.tokens), np.asarray(found.scores)


def probabilities(logits, temperature=1.0):
    allowed = np.where(np.arange(VOCAB) < EOS, -np.inf, logits / temperature)
    return np.exp(allowed) / np.exp(allowed).sum()


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_tokens_are_as_frequent_as_their_probability(temperature):
    tokens, _ = draw(4, 5000, temperature=temperature)
    first, second = tokens[:, :, 0].ravel(), tokens[:, :, 1].ravel()
    found = np.bincount(first, minlength=VOCAB) / len(first)
    np.testing.assert_allclose(found, probabilities(TABLE[BOS], temperature), atol=0.02)
    last = int(np.bincount(first[first != EOS]).argmax())
    after = second[first == last]
    found = np.bincount(after, minlength=VOCAB) / len(after)
    np.testing.assert_allclose(found, probabilities(TABLE[last], temperature), atol=0.03)


def test_a_score_is_the_log_probability_under_the_model_itself():
    tokens, scores = draw(2, 50, temperature=0.7, top_k=3)
    log_softmax = TABLE - np.log(np.exp(TABLE).sum(axis=1, keepdims=True))
    for rows, row_scores in zip(tokens, scores, strict=True):
        assert (np.diff(row_scores) <= 0).all()
        for row, score in zip(rows, row_scores, strict=True):
            output = row[row != PAD]
            assert (row[len(output) :] == PAD).all() and EOS not in output[:-1]
            assert len(output) == 4 or output[-1] == EOS
            path = zip([BOS, *output[:-1]], output, strict=True)
            assert score == pytest.approx(sum(log_softmax[a, b] for a, b in path), abs=1e-4)


def kept(logits, **options):
    """True for the tokens that may be sampled."""
    return np.isfinite(run(truncated_logits, np.float32(logits), 1.0, **options))


def test_top_k_and_top_p_keep_the_most_likely():
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))

    def left(**options):
        return "".join("01"[int(is_kept)] for is_kept in kept(logits, **options)[0])

    assert left(top_k=2) == "1100"
    assert left(top_k=9) == left(top_p=1.0) == "1111"
    assert [left(top_p=p) for p in (0.39, 0.41, 0.8)] == ["1000", "1100", "1110"]
    assert left(top_k=2, top_p=0.5) == "1000"  # of the two, the first has probability 4 / 7
    assert left(banned_ids=(0,)) == "0111"
    np.testing.assert_allclose(run(truncated_logits, logits, 0.5), 2 * logits, rtol=1e-6)


def test_top_k_keeps_the_first_of_equal_tokens():
    logits = np.tile(np.array([[0, 2, 1, 2, 1, 1]], np.float32), (2, 60))  # blocks of equals
    for k in (1, 2, 121, 122):
        left = kept(logits, top_k=k)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        assert (left.sum(axis=1) == k).all()
        assert np.take_along_axis(left, order, axis=1).all()


def test_top_p_keeps_the_nucleus_of_rounded_logits():
    """Rounded to bfloat16, many logits are equal. Compared with a stable sort in float64."""
    assert kept([[0, -20, -30, -80]], top_p=1.0).all()
    rng = np.random.default_rng(0)
    logits = (4 * rng.normal(size=(8, 500))).astype(jnp.bfloat16).astype(np.float32)
    for top_p in (0.3, 0.9, 0.99):
        left = kept(logits, top_p=top_p)
        for row, of_row in zip(np.asarray(logits, np.float64), left, strict=True):
            order = np.argsort(-row, kind="stable")
            sums = np.cumsum(np.exp(row[order] - row.max())) / np.exp(row - row.max()).sum()
            expected = order[: np.searchsorted(sums, top_p) + 1]
            assert set(np.flatnonzero(of_row)) == set(expected)
