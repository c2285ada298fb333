"""Top-k by block maxima gives what `jax.lax.top_k` gives."""

import jax
import numpy as np
import pytest

from transformer_jax.decoding.top_k import BLOCK, top_k


def assert_equals_lax(x, k):
    values, columns = jax.jit(top_k, static_argnums=1)(x, k)
    expected_values, expected_columns = jax.lax.top_k(x, k)
    np.testing.assert_array_equal(columns, expected_columns)
    np.testing.assert_array_equal(values, expected_values)


@pytest.mark.parametrize("num_columns", [7, 20 * BLOCK, 20 * BLOCK + 9])
@pytest.mark.parametrize("k", [1, 5])
def test_equals_lax_top_k(num_columns, k):
    x = np.random.default_rng(num_columns).normal(size=(6, num_columns)).astype(np.float32)
    assert_equals_lax(x, k)


@pytest.mark.parametrize("num_values", [2, 1000])
@pytest.mark.parametrize("k", [1, 9])
def test_equal_values_come_in_the_order_of_their_columns(num_values, k):
    x = np.random.default_rng(k).integers(num_values, size=(8, 30 * BLOCK + 5)).astype(np.float32)
    assert_equals_lax(x, k)


def test_minus_infinity_is_a_value_as_any_other():
    x = np.full((3, 30 * BLOCK + 5), -np.inf, np.float32)
    x[0, 1000] = x[1, -1] = 1.0
    assert_equals_lax(x, 3)


@pytest.mark.parametrize("num_columns", [7, 20 * BLOCK + 9])
def test_what_is_best_is_found_beside_columns_of_minus_infinity(num_columns):
    x = np.random.default_rng(0).normal(size=(6, num_columns)).astype(np.float32)
    x[:, 6] = 8.0
    x[:, [0, 5, num_columns - 1]] = -np.inf  # in the block of the best, too
    assert_equals_lax(x, 3)
