# SPDX-License-Identifier: Apache-2.0
"""Cells, and the attention weights of each score and span, equal their papers' equations."""

import jax
import numpy as np
import pytest

from tests.compiled import apply, run
from tests.nn.recurrent import recurrent_oracle as oracle
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.ops import additive_scores
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.nn.recurrent.decoder import SCORES, SourceAttention

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


@pytest.mark.parametrize("name", CELLS)
def test_a_step_equals_the_papers_equations(random_params, name):
    cell = CELLS[name](CONFIG, inputs=5, size=4, feedback_size=3)
    x, feedback = (RNG.normal(size=size).astype(np.float32) for size in ((2, 1, 5), (2, 3)))
    step, vectors = oracle.CELLS[name]
    state = tuple(RNG.normal(size=(2, 4)).astype(np.float32) for _ in range(vectors))

    def one_step(cell, state):
        return cell.step(state, cell.project(x)[:, 0], feedback)

    drawn = random_params(cell, state, method=one_step)
    found = apply(cell, drawn, state, method=one_step)
    params = jax.tree.map(np.asarray, drawn["params"])
    for row in range(2):
        wanted = step(params, x[row, 0], tuple(part[row] for part in state), feedback[row])
        for part, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(part[row], expected, rtol=1e-5, atol=1e-6)


def test_the_forget_gate_of_an_initial_lstm_is_open():
    cell = CELLS["lstm"](CONFIG, inputs=2, size=3)
    fresh = run(cell.init, jax.random.key(0), np.zeros((1, 1, 2)), method="project")["params"]
    assert fresh["gate_biases"].sum(axis=1).tolist() == [0, 3, 0, 0]
