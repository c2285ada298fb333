"""Arrays as text: what is read is what was written, to the precision that is told."""

import numpy as np
import pytest

from transformer_jax.analysis.pages import document
from transformer_jax.analysis.pages.document import asset, page


def test_weights_have_four_decimals():
    weights = np.arange(0, 1, 0.00003, np.float32).reshape(2, -1)
    expected = np.round(weights.astype(np.float64), 4)
    np.testing.assert_array_equal(document.unpack(document.pack_weights(weights)), expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scaled_numbers_are_right_to_half_a_step(scale):
    values = scale * np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = document.unpack(document.pack_scaled(values))
    np.testing.assert_allclose(found, values, rtol=0, atol=0.51 * np.abs(values).max() / 32767)


@pytest.mark.parametrize("values", [np.zeros((2, 3)), np.zeros((0, 3)), np.float32(2.5)])
def test_zeros_nothing_and_a_number_have_their_shapes(values):
    for pack in (document.pack_scaled, document.pack_floats):
        found = document.unpack(pack(values))
        assert found.shape == np.shape(values)
        np.testing.assert_array_equal(found, values)


def test_floats_are_kept_to_the_bit():
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    values[0] = [np.inf, -np.inf, 0, 1e-40]
    np.testing.assert_array_equal(document.unpack(document.pack_floats(values)), values)


def test_the_page_reads_each_kind(show):
    """Of the one script alone."""
    values = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    packers = (document.pack_weights, document.pack_scaled, document.pack_floats)
    data = [pack(values) for pack in packers]
    scripts = [asset("packed.js"), asset("document.js"), "performance.mark('drawn')"]
    tab = show(page("arrays", "", [], scripts, data))
    shown = tab.evaluate(
        "Promise.all(readData().map(async (a) => Array.from((await unpack(a)).values)))"
    )
    for one, found in zip(data, shown, strict=True):
        expected = document.unpack(one).astype(np.float32)
        np.testing.assert_array_equal(np.float32(found).reshape(2, 3), expected)
