# SPDX-License-Identifier: Apache-2.0
"""Rotary positions equal multiplication of complex numbers."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.refusals import assert_refused
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions.rotary import (
    SCALINGS,
    RotaryPositions,
    YarnOptions,
    rotary_frequencies,
)

PLACES = np.array([[0, 1, 2, 7], [3, 0, 1, 100]])
RNG = np.random.default_rng(0)


def turned(x, places=PLACES, **options):
    """Rotates queries x, and checks that keys are rotated alike."""
    encoding = RotaryPositions(TransformerConfig(key_size=x.shape[-1], **options))
    query, key = apply(encoding, {}, jnp.asarray(x), x[:, :, :1], places, method="rotate")
    np.testing.assert_array_equal(key, query[:, :, :1])
    return np.asarray(query)


@pytest.mark.parametrize("layout", ["pairs", "halves"])
@pytest.mark.parametrize(
    ("size", "fraction", "rotated_size", "theta"),
    [(2, 1.0, 2, 10_000.0), (8, 1.0, 8, 500.0), (10, 0.4, 4, 1e6), (7, 0.8, 5, 10_000.0)],
)
def test_pairs_are_rotated_like_complex_numbers(layout, size, fraction, rotated_size, theta):
    """With 5 rotated elements the last has no partner and is unchanged."""
    x = RNG.normal(size=(2, 4, 3, size)).astype(np.float32)
    options = {"rope_layout": layout, "rope_fraction": fraction, "rope_theta": theta}
    found, pairs = turned(x, **options), rotated_size // 2
    for b, t, h, i in np.ndindex(2, 4, 3, pairs):
        one, other = (2 * i, 2 * i + 1) if layout == "pairs" else (i, i + pairs)
        turn = np.exp(1j * PLACES[b, t] * theta ** (-2 * i / rotated_size))
        expected = (x[b, t, h, one] + 1j * x[b, t, h, other]) * turn
        assert abs(found[b, t, h, one] + 1j * found[b, t, h, other] - expected) < 1e-4
    np.testing.assert_array_equal(found[..., 2 * pairs :], x[..., 2 * pairs :])


def llama3(frequency, factor, low, high, length):
    """The cases of the published code, one frequency at a time."""
    wavelength = 2 * math.pi / frequency
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / factor
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3"])
def test_scaled_frequencies(scaling):
    options = {"factor": 32.0, "low_factor": 1.5, "high_factor": 5.0, "original_length": 512}
    config = TransformerConfig(
        rope_scaling=scaling,
        rope_theta=500_000.0,
        **{f"rope_{name}": value for name, value in options.items()},
    )
    plain = [500_000.0 ** (-2 * i / 64) for i in range(32)]
    expected = {
        "none": plain,
        "linear": [each / 32 for each in plain],
        "llama3": [llama3(each, *options.values()) for each in plain],
    }[scaling]
    np.testing.assert_allclose(rotary_frequencies(config, 64), expected, rtol=2e-6)
    kinds = {each / one for each, one in zip(expected, plain, strict=True)}
    assert len(kinds) > 4 if scaling == "llama3" else len({round(k, 9) for k in kinds}) == 1


YARN = [
    (
        *(4.0, YarnOptions(), 1.138629436111989),
        [1.0, 0.59336573, 0.34489745, 0.19490507, 0.10573712, 0.053777814, 0.024312312]
        + [0.016486961, 0.01118034, 0.007581749, 0.0051414282, 0.0034865679, 0.002364354],
    ),
    (
        *(16.0, YarnOptions(8.0, 2.0, truncate=False), 1.2772588722239782),
        [1.0, 0.61078805, 0.293403, 0.11705306, 0.023829626, 0.0089629684, 0.0060780779],
    ),
    (*(4.0, YarnOptions(attention_factor=1.25), 1.25), [1.0, 0.59336573, 0.34489745]),
]
"""Factor, options, magnitude, and first of 16 frequencies: `ROPE_INIT_FUNCTIONS["yarn"]` of
transformers 5.23 with theta 500, an original length of 64 tokens and heads of 32 elements."""


@pytest.mark.parametrize(("factor", "options", "magnitude", "frequencies"), YARN)
def test_yarn_equals_transformers(factor, options, magnitude, frequencies):
    fields = {"rope_theta": 500.0, "rope_factor": factor, "rope_original_length": 64}
    config = TransformerConfig(rope_scaling="yarn", key_size=32, options=(options,), **fields)
    found = rotary_frequencies(config, 32)
    np.testing.assert_allclose(found[: len(frequencies)], frequencies, rtol=1e-6)
    assert SCALINGS["yarn"].magnitude(config) == pytest.approx(magnitude, rel=1e-12)
    x = RNG.normal(size=(2, 4, 3, 32)).astype(np.float32)
    rotated = turned(x, rope_scaling="yarn", options=(options,), **fields)
    turns = np.exp(1j * PLACES[:, :, None, None] * found.astype(np.float64))
    expected = magnitude * turns * (x[..., ::2] + 1j * x[..., 1::2])
    np.testing.assert_allclose(rotated[..., ::2] + 1j * rotated[..., 1::2], expected, atol=1e-4)


def test_limits_that_exclude_each_other_or_leave_nothing_are_refused():
    def frequencies(**changes):
        return lambda: rotary_frequencies(TransformerConfig(**changes), 64)

    crossed = {"rope_scaling": "llama3", "rope_low_factor": 4.0}
    refused = {
        "rope_fraction 0.01 of 64 elements of a head is no pair": frequencies(rope_fraction=0.01),
        "beta_slow 4 is not below beta_fast 4": lambda: YarnOptions(4.0, 4.0),
        "rope_low_factor 4 is not below": frequencies(**crossed),
        "no layer has an attention_window": frequencies(rope_theta_window=50.0),
    }
    assert_refused(refused)


def test_layers_with_a_window_may_have_a_theta_of_their_own_and_no_scaling():
    scaled = {"rope_scaling": "linear", "rope_factor": 4.0, "attention_window": 2}
    layers = "default | attention_window=none"
    config = TransformerConfig(**scaled, rope_theta_window=50.0, layers=layers)
    encoding, x = RotaryPositions(config), RNG.normal(size=(2, 4, 3, 8)).astype(np.float32)

    def rotated(layer):
        return encoding.of_layer(config.of_layer(layer)).rotate(x, x, PLACES)[0]

    np.testing.assert_allclose(rotated(0), turned(x, rope_theta=50.0), atol=1e-6)
    others = {"rope_scaling": "linear", "rope_factor": 4.0}
    np.testing.assert_allclose(rotated(1), turned(x, **others), atol=1e-6)


class Backward(RotaryPositions):
    def rotate(self, query, key, positions):
        return super().rotate(query, key, -positions)


@pytest.mark.parametrize(("kind", "turn"), [(RotaryPositions, 1), (Backward, -1)])
def test_layers_may_have_options_of_a_scaling_of_their_own(kind, turn):
    """Other rotations, too, which a user derives from these."""
    config = TransformerConfig(rope_scaling="yarn", rope_factor=4.0)
    layer = dataclasses.replace(config, options=(YarnOptions(attention_factor=2.0),))
    x = RNG.normal(size=(2, 4, 3, 8)).astype(np.float32)
    encoding = kind(config)
    rotated = encoding.of_layer(layer).rotate(x, x, PLACES)[0]
    np.testing.assert_allclose(rotated, RotaryPositions(layer).rotate(x, x, turn * PLACES)[0])
    assert encoding.of_layer(config) is encoding
