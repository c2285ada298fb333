"""Turned queries and keys, as complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.rotary import RotaryPositions, rotated

PLACES = np.array([[0, 1, 2, 7], [3, 0, 1, 100]])
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [2, 8])
def test_pairs_are_complex_numbers_times_a_turn(size):
    x = RNG.normal(size=(2, 4, 3, size)).astype(np.float32)
    frequencies = np.array([10_000 ** (-2 * i / size) for i in range(size // 2)])
    turns = np.exp(1j * PLACES[:, :, None, None] * frequencies)
    expected = (x[..., ::2] + 1j * x[..., 1::2]) * turns
    found = np.asarray(rotated(x, PLACES))
    np.testing.assert_allclose(found[..., ::2] + 1j * found[..., 1::2], expected, atol=1e-4)


def test_products_tell_distances_alone():
    query, key = RNG.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def product(query_place, key_place):
        places = np.array([[query_place]]), np.array([[key_place]])
        return float((rotated(query, places[0]) * rotated(key, places[1])).sum())

    assert product(5, 2) == pytest.approx(product(25, 22), abs=1e-4)
    assert abs(product(5, 2) - product(5, 3)) > 1e-2


def test_an_odd_last_element_stays():
    x = RNG.normal(size=(2, 4, 3, 5)).astype(np.float32)
    found = rotated(x, PLACES)
    np.testing.assert_array_equal(found[..., 4], x[..., 4])
    assert found.shape == x.shape


def test_queries_and_keys_are_rotated_and_nothing_is_added():
    encoding = RotaryPositions(TransformerConfig())
    query = jnp.array(RNG.normal(size=(2, 4, 4, 6)), jnp.float32)
    key = jnp.array(RNG.normal(size=(2, 4, 2, 6)), jnp.float32)
    found = encoding.apply({}, query, key, PLACES, method="rotate")
    expected = rotated(query, PLACES), rotated(key, PLACES)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert encoding.bias(np.zeros((2, 4, 4), int)) is None
