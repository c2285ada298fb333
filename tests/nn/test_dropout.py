"""Dropout: what it zeroes, what it keeps, and when it draws."""

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.nn.dropout import Dropout, random_bytes

SHAPE = (64, 257)  # columns that no word of four bytes divides


def drop(rate, x, seed=0):
    return Dropout(rate).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(seed)})


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_zeroes_the_rate_and_keeps_the_mean(rate):
    y = np.asarray(drop(rate, jnp.ones((1000, 1001))))
    rounded = round(256 * rate) / 256
    deviation = np.sqrt(rate * (1 - rate) / y.size)  # below 0.0005, a count of 256 parts is seen
    assert np.mean(y == 0) == pytest.approx(rounded, abs=4 * deviation)
    assert y.mean() == pytest.approx(1, abs=4 * deviation / (1 - rate))
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rounded), rtol=1e-6)


def test_every_column_is_dropped_now_and_then():
    y = drop(0.5, jnp.ones((200, 7)))
    np.testing.assert_allclose((y == 0).mean(axis=0), 0.5, atol=0.15)


def test_scales_each_element():
    x = jax.random.normal(jax.random.key(1), SHAPE)
    y = drop(0.5, x)
    np.testing.assert_array_equal(y, np.where(np.asarray(y) == 0, 0, 2 * np.asarray(x)))


def test_deterministic_is_the_identity_and_draws_nothing():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, deterministic=True), x)


def test_rate_0_draws_nothing():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, deterministic=False), x)


def test_asks_for_the_stream_dropout():
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        Dropout(0.5).apply({}, jnp.ones(3), deterministic=False)


def test_a_rate_just_below_1_still_keeps_some():
    y = np.asarray(drop(0.999, jnp.ones(SHAPE)))
    assert 0 < np.mean(y != 0) < 0.01 and np.isfinite(y).all()


def test_keys_decide():
    x = jnp.ones(SHAPE)
    np.testing.assert_array_equal(drop(0.5, x, seed=1), drop(0.5, x, seed=1))
    assert np.mean(drop(0.5, x, seed=1) != drop(0.5, x, seed=2)) == pytest.approx(0.5, abs=0.02)


def test_random_bytes_are_uniform():
    values = np.asarray(random_bytes(jax.random.key(0), SHAPE))
    assert values.shape == SHAPE and values.dtype == np.uint8
    counts = np.bincount(values.ravel(), minlength=256)
    assert counts == pytest.approx(values.size / 256, rel=0.6)
    # Chi-squared with 255 degrees of freedom: mean 255, deviation 22.6.
    expected = values.size / 256
    assert ((counts - expected) ** 2 / expected).sum() == pytest.approx(255, abs=5 * 22.6)
