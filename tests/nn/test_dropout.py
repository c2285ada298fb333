# SPDX-License-Identifier: Apache-2.0
"""Dropout: rate, mean, random bits and gradients."""

import flax.errors
import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.nn import dropout

SHAPE = (64, 257)


def threefry_bits(key, shape):
    return dropout.threefry_bits(jax.random.key_data(key), shape)


def drop(rate, x, seed=0, bits="threefry"):
    return dropout.Dropout(rate, bits).apply(
        {}, x, deterministic=False, rngs={"dropout": jax.random.key(seed)}
    )


@pytest.mark.parametrize("bits", ["threefry", "hardware"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_zeroes_the_rate_and_keeps_the_mean(rate, bits):
    y = np.asarray(run(drop, rate, np.ones((1000, 1001), np.float32), bits=bits))
    deviation = np.sqrt(rate * (1 - rate) / y.size)  # below 0.0005
    assert np.mean(y == 0) == pytest.approx(rate, abs=4 * deviation)
    assert y.mean() == pytest.approx(1, abs=4 * deviation / (1 - rate))
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)


def test_nothing_is_drawn_where_nothing_is_dropped():
    x = jnp.arange(6.0)
    for rate, deterministic in ((0.5, True), (0.0, False)):
        same = dropout.Dropout(rate).apply({}, x, deterministic=deterministic)
        np.testing.assert_array_equal(same, x)
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        dropout.Dropout(0.5).apply({}, x, deterministic=False)


@pytest.mark.parametrize("bits", ["threefry", "hardware"])
def test_derivatives_drop_the_same_elements(bits):
    x, change = np.random.default_rng(1).normal(size=(2, *SHAPE)).astype(np.float32)

    @jax.jit
    def derivatives(x, change):
        dropped = lambda x: drop(0.5, x, bits=bits)  # noqa: E731
        y, back = jax.vjp(dropped, x)
        return y, back(change)[0], jax.jvp(dropped, (x,), (change,))[1]

    y, gradient, tangent = map(np.asarray, derivatives(x, change))
    np.testing.assert_array_equal(y, np.where(y == 0, 0, 2 * x))
    np.testing.assert_array_equal(gradient, np.where(y == 0, 0, 2 * change))
    np.testing.assert_array_equal(tangent, gradient)


def test_random_bits_are_threefry_of_row_and_place():
    key = jax.random.key(4)
    row, place = np.indices((5, 6 * 7)).astype(np.uint32)
    words = jex.random.threefry_2x32(
        jax.random.key_data(key), jnp.concatenate([row.ravel(), place.ravel()])
    )
    first, second = jnp.split(words, 2)
    bits = threefry_bits(key, (5, 6, 7))
    assert bits.shape == (5, 6, 7) and bits.dtype == jnp.uint32
    np.testing.assert_array_equal(bits.ravel(), first ^ second)
    np.testing.assert_array_equal(threefry_bits(key, (1, 1000))[0], jax.random.bits(key, (1000,)))


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_work(kind):
    one, other = (threefry_bits(jax.random.key(seed, impl=kind), SHAPE) for seed in (1, 2))
    assert one.dtype == jnp.uint32 and np.mean(one == other) < 1e-3


def test_no_mask_is_kept_for_the_gradient():
    _, backward = jax.vjp(lambda x: drop(0.5, x), jnp.ones(SHAPE))
    assert sum(leaf.size for leaf in jax.tree.leaves(backward)) < SHAPE[0]


def test_layers_of_one_shape_share_the_function_of_the_bits():
    def lines_of_threefry(layers):
        def network(x):
            for seed in range(layers):
                x = drop(0.5, x, seed)
            return x

        return jax.jit(network).lower(jnp.ones(SHAPE)).as_text().count("stablehlo.xor")

    assert lines_of_threefry(1) == lines_of_threefry(4)


def test_bits_come_from_the_hardware_on_accelerators_unless_said_otherwise(compiling_for):
    def program(bits):
        return str(jax.make_jaxpr(lambda x: drop(0.5, x, bits=bits))(jnp.ones((8, 8))))

    assert "rng_bit_generator" not in program("auto")  # on a CPU
    compiling_for("tpu")
    assert "rng_bit_generator" in program("auto")
    assert "rng_bit_generator" not in program("threefry")
