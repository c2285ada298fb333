# SPDX-License-Identifier: Apache-2.0
"""Constrained search against filtered exhaustive search."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.test_beam_search import enumerate_all
from tests.decoding.toy_models import BANNED, EOS, PAD, MarkovChain
from transformer_jax.decoding import BeamSearch, Sampler, Start, constrained, masked_logits

WORDS, LIMIT, BATCH = 3, 5, 4
VOCAB = WORDS * (WORDS - 1) ** 3 * WORDS
"""Number of hypotheses compared at the limit, which is the widest beam."""


class NoRepetition:
    """Allows no word after itself, and outputs with an even number of words. Its state is the last
    token and the number of tokens."""

    def begin(self, tokens, counts, limits):
        return jnp.zeros_like(counts), jnp.zeros_like(counts)

    def allowed(self, state):
        last, count = state
        tokens = jnp.arange(VOCAB)
        return (tokens != last[:, None]) & ((tokens != EOS) | (count % 2 == 0)[:, None])

    def advance(self, state, tokens):
        return (tokens, state[1] + 1), tokens


def is_allowed(output):
    words = [token for token in output if token != EOS]
    return len(words) % 2 == 0 and all(a != b for a, b in zip(output, output[1:], strict=False))


def found_by(search, num_outputs):
    model, constraint = MarkovChain(0, BATCH, WORDS, VOCAB), NoRepetition()
    logits, memory, state = model.prefill()
    logits = logits.copy()
    logits[:, PAD] = memory[:, :, PAD] = 1.0  # a banned token with a probability of its own
    step = constrained(model.decode_step, constraint, PAD)

    @jax.jit
    def find(logits, memory):
        zeros = jnp.zeros(BATCH, jnp.int32)
        first = constraint.begin(None, zeros, zeros)
        masked = masked_logits(logits, constraint.allowed(first), PAD)
        keys = jax.vmap(jax.random.key)(jnp.arange(BATCH))
        start = Start(masked, memory, (state, first), jnp.full(BATCH, LIMIT), keys)
        return search.find(step, start, num_outputs=num_outputs, max_length=LIMIT)

    found = jax.tree.map(np.asarray, find(logits, memory))
    return model, SimpleNamespace(
        outputs=[[tuple(t[t != PAD].tolist()) for t in row] for row in found.tokens],
        scores=found.scores,
    )


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_what_filtered_enumeration_finds(alpha):
    model, found = found_by(BeamSearch(VOCAB, alpha, EOS, PAD, BANNED), VOCAB)
    for sentence in range(BATCH):
        ended, _ = enumerate_all(model, sentence, LIMIT, alpha)
        expected = {output: score for output, score in ended.items() if is_allowed(output)}
        assert len(expected) == 1 + 3 * 2 + 3 * 2**3
        outputs = found.outputs[sentence][: len(expected)]
        assert {*outputs} == {*expected}
        scores = found.scores[sentence][: len(expected)]
        np.testing.assert_allclose(scores, [expected[o] for o in outputs], rtol=1e-5)
        assert (np.diff(scores) <= 0).all()


def test_greedy_search_and_samples_obey_and_are_scored_by_the_model():
    for top_k in (1, None):
        sampler = Sampler(1.0, top_k, None, eos_id=EOS, pad_id=PAD, banned_ids=BANNED)
        model, found = found_by(sampler, num_outputs=20)
        for sentence, outputs in enumerate(found.outputs):
            ended, cut = enumerate_all(model, sentence, LIMIT, 0.0)
            scores = ended | cut
            assert all(is_allowed(output) or output in cut for output in outputs)
            assert all(a != b for out in outputs for a, b in zip(out, out[1:], strict=False))
            expected = [scores[output] for output in outputs]
            np.testing.assert_allclose(found.scores[sentence], expected, rtol=1e-5)
            assert len(set(outputs)) == 1 or top_k is None
