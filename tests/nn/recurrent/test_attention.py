# SPDX-License-Identifier: Apache-2.0
"""Attention weights of each score and span equal their papers' equations."""

import jax
import numpy as np
import pytest

from tests.compiled import apply
from tests.nn.recurrent import recurrent_oracle as oracle
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.recurrent.decoder import SCORES, SourceAttention, additive_scores

CONFIG = TransformerConfig(d_model=8, num_heads=1, dtype="float32")
RNG = np.random.default_rng(0)
QUERIES, ENCODED = (RNG.normal(size=(1, n, 8)).astype(np.float32) for n in (4, 9))
QUERY_IDS = np.array([[1, 1, 2, 2]])
SEGMENT_IDS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]])
SEGMENTS = {1: slice(0, 5), 2: slice(5, 8)}


def attend(attention, queries, ids):
    source = attention.remember(ENCODED, SEGMENT_IDS, POSITIONS)
    return attention(queries, source, ids)


@pytest.mark.parametrize("radius", [None, 2])
@pytest.mark.parametrize("score", SCORES[1:])
def test_weights_equal_the_papers_equations(random_params, score, radius):
    attention = SourceAttention(CONFIG, score, radius)
    drawn = random_params(attention, QUERIES, QUERY_IDS, method=attend)
    context, weights = apply(attention, drawn, QUERIES, QUERY_IDS, method=attend)
    params = jax.tree.map(np.asarray, drawn.get("params", {}))
    for at, segment in enumerate(QUERY_IDS[0]):
        seen = SEGMENTS[segment]
        expected = np.zeros(9)
        own = oracle.weights(score, params, QUERIES[0, at], ENCODED[0, seen], radius)
        expected[seen] = own
        np.testing.assert_allclose(weights[0, at], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(context[0, at], expected @ ENCODED[0], rtol=1e-5, atol=1e-6)
    if radius is None:
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    else:
        assert (weights[0, :2, :5] == 0).any() and (weights.sum(-1) < 1).all()


def test_beams_share_the_memory_of_their_sentence(random_params):
    """There are more rows of queries than sentences; neighboring rows belong to one sentence."""
    attention = SourceAttention(CONFIG, "general", None)
    drawn = random_params(attention, QUERIES, QUERY_IDS, method=attend)
    whole = apply(attention, drawn, QUERIES, QUERY_IDS, method=attend)
    beams = (QUERIES.reshape(4, 1, 8), QUERY_IDS.reshape(4, 1))
    context, weights = apply(attention, drawn, *beams, method=attend)
    np.testing.assert_array_equal(context.reshape(1, 4, 8), whole[0])
    np.testing.assert_array_equal(weights, whole[1])


def test_no_array_of_all_pairs_is_saved_for_the_backward_pass():
    """The [B, Q, S, D] of additive scores would be the largest array of the model."""
    inputs = (np.ones((2, 5, 8)), np.ones((2, 7, 8)), np.ones(8))
    _, backward = jax.vjp(additive_scores, *inputs)
    kept = [leaf.shape for leaf in jax.tree.leaves(backward)]
    assert kept and (2, 5, 7, 8) not in kept
