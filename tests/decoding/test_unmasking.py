# SPDX-License-Identifier: Apache-2.0
"""Iterative unmasking, on distributions given as tables."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding import Unmasking

MASK = 3
# Logits of two places with 3 tokens and [MASK]: alone, and given the token of the other place.
ALONE = np.array([[1.0, 0.0, -1.0, 0.0], [0.0, 0.5, -0.5, 0.0]])
GIVEN = np.random.default_rng(0).normal(size=(2, 4, 4))


def logits_of(tokens):  # [B, 2] -> [B, 2, 4]
    other = tokens[:, ::-1]
    given = jnp.asarray(GIVEN)[jnp.arange(2), other]
    return jnp.where((other == MASK)[..., None], jnp.asarray(ALONE), given)


def probabilities(logits):
    exp = np.exp(logits[..., :MASK])
    return exp / exp.sum(axis=-1, keepdims=True)


def run(tokens, **changes):
    settings = {"steps": 2, "order": "confidence", "remask": False, "temperature": None}
    unmasking = Unmasking(**settings | changes)
    keys = jax.random.split(jax.random.key(0), len(tokens))
    program = jax.jit(lambda tokens, keys: unmasking(logits_of, tokens, MASK, keys))
    return [np.asarray(x) for x in program(jnp.asarray(tokens), keys)]


def test_the_surest_token_comes_first_and_the_rest_follows_from_it():
    tokens, log_probs = run([[MASK, MASK], [1, MASK]])
    alone = probabilities(ALONE)
    assert alone[0].max() > alone[1].max()
    second = probabilities(GIVEN[1, 0])
    assert tokens[0].tolist() == [0, second.argmax()]
    np.testing.assert_allclose(np.exp(log_probs[0]), [alone[0, 0], second.max()], rtol=1e-5)
    assert tokens[1].tolist() == [1, probabilities(GIVEN[1, 1]).argmax()] and log_probs[1, 0] == 0


def test_one_step_fills_all_places_at_once():
    tokens, log_probs = run([[MASK, MASK]], steps=1)
    alone = probabilities(ALONE)
    assert tokens[0].tolist() == alone.argmax(axis=1).tolist()
    np.testing.assert_allclose(np.exp(log_probs[0]), alone.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize("remask", [False, True])
def test_samples_in_random_order_have_the_distribution_of_the_model(remask):
    count = 10_000
    tokens, _ = run(
        np.full((count, 2), MASK), order="random", temperature=1.0, remask=remask, steps=2
    )
    alone, given = probabilities(ALONE), probabilities(GIVEN)
    exact = np.zeros((3, 3))
    for a, b in itertools.product(range(3), repeat=2):
        exact[a, b] = (alone[0, a] * given[1, a, b] + alone[1, b] * given[0, b, a]) / 2
    shares = np.zeros((3, 3))
    np.add.at(shares, tuple(tokens.T), 1 / count)
    if not remask:
        np.testing.assert_allclose(shares, exact, atol=0.02)
    assert (tokens < MASK).all()


def test_banned_tokens_are_never_chosen():
    tokens, _ = run([[MASK, MASK]] * 50, banned_ids=(0,), temperature=2.0)
    assert set(tokens.flat) == {1, 2}
