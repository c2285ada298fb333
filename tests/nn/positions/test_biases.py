# SPDX-License-Identifier: Apache-2.0
"""ALiBi's slopes and T5's buckets equal those of the papers' code."""

import dataclasses
import math

import numpy as np
import pytest

from tests.compiled import apply
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.relative import LinearBiases, T5Buckets, alibi_slopes, t5_buckets

QUERIES, KEYS = np.array([[0, 1, 3], [5, 6, 7]]), np.array([[0, 1, 2, 3], [4, 0, 1, 7]])
DISTANCE = KEYS[:, None, :] - QUERIES[:, :, None]
CONFIG = TransformerConfig(d_model=24, num_heads=3, positions="t5")


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [2**-8]),
        (8, [2**-i for i in range(1, 9)]),
        (16, [2 ** (-i / 2) for i in range(1, 17)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-i for i in range(1, 9)] + [2 ** -(i + 0.5) for i in range(4)]),
    ],
)
def test_slopes(num_heads, expected):
    np.testing.assert_allclose(alibi_slopes(num_heads), expected)


def test_a_bias_is_a_slope_times_the_distance():
    found = apply(LinearBiases(CONFIG), {}, DISTANCE, method="bias")
    assert found.shape == (2, 3, 3, 4)
    for b, h, t, s in np.ndindex(found.shape):
        distance = abs(int(QUERIES[b, t]) - int(KEYS[b, s]))
        assert found[b, h, t, s] == pytest.approx(-[2**-4, 2**-8, 2**-2][h] * distance)


def test_buckets_of_a_decoder():
    """32 buckets up to 128: sixteen of one distance each, then wider and wider."""
    starts = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    expected = np.searchsorted(starts, np.arange(300), side="right") - 1
    found = t5_buckets(299, causal=True)
    np.testing.assert_array_equal(found[299::-1], expected)
    assert expected.max() == 31
    np.testing.assert_array_equal(found[299:], 0)


def test_buckets_of_an_encoder():
    starts = [*range(9), 12, 16, 23, 32, 46, 64, 91]
    expected = np.searchsorted(starts, np.arange(300), side="right") - 1
    assert expected.max() == 15
    found = t5_buckets(299, causal=False)
    np.testing.assert_array_equal(found[299::-1], expected)
    ahead = np.where(np.arange(300) > 0, expected + 16, 0)
    np.testing.assert_array_equal(found[299:], ahead)


def slow_bucket(distance, causal, num_buckets, max_distance):
    """Raffel et al. (2020) in the order of their code, rounded to float32 after each step."""
    ahead, side = 0, num_buckets
    if not causal:
        side //= 2
        ahead = side if distance > 0 else 0
    distance = max(-distance, 0) if causal else abs(distance)
    exact = side // 2
    if distance < exact:
        return ahead + distance
    growth = np.log(np.float32(distance) / np.float32(exact))
    growth = growth / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    return ahead + min(exact + int(growth), side - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 800), (4, 16), (33, 40), (100, 128)]
)
def test_other_numbers_of_buckets(random_params, causal, num_buckets, max_distance):
    """With 800, a distance of 80 is at a bucket's boundary; an odd number leaves one unused."""
    distance = np.arange(-2000, 2001)
    expected = [slow_bucket(int(d), causal, num_buckets, max_distance) for d in distance]
    np.testing.assert_array_equal(t5_buckets(2000, causal, num_buckets, max_distance), expected)
    config = dataclasses.replace(CONFIG, num_buckets=num_buckets, max_distance=max_distance)
    encoding = T5Buckets(config, causal)
    variables = random_params(encoding, DISTANCE, method="bias")
    found = apply(encoding, variables, distance[None, None], method="bias")
    table = variables["params"]["bucket_biases"]
    np.testing.assert_array_equal(found[0, :, 0], table[expected].T)


@pytest.mark.parametrize("causal", [False, True])
def test_each_bucket_has_a_bias_of_each_head(random_params, causal):
    encoding = T5Buckets(CONFIG, causal)
    variables = random_params(encoding, DISTANCE, method="bias")
    table = variables["params"]["bucket_biases"]
    assert table.shape == (32, 3)
    found = apply(encoding, variables, DISTANCE, method="bias")
    for b, h, t, s in np.ndindex(2, 3, 3, 4):
        distance = int(KEYS[b, s]) - int(QUERIES[b, t])  # at most 7, each its own bucket
        bucket = max(-distance, 0) if causal else abs(distance) + 16 * (distance > 0)
        assert found[b, h, t, s] == table[bucket, h]


@pytest.mark.parametrize(("causal", "least"), [(False, 9), (True, 17)])
def test_max_distance_must_exceed_the_exact_buckets(random_params, causal, least):
    def encoding(max_distance):
        config = TransformerConfig(positions="t5", max_distance=max_distance)
        return random_params(T5Buckets(config, causal), DISTANCE, method="bias")

    encoding(least)
    with pytest.raises(ValueError, match=f"max_distance is {least - 1}; .* need at least {least}"):
        encoding(least - 1)
