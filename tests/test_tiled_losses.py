# SPDX-License-Identifier: Apache-2.0
"""The loss computed tile by tile equals the loss of all logits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.losses import (
    TopPredictions,
    teacher_divergence,
    tiled_divergence,
    tiled_token_losses,
    top_k_divergence,
)
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.runtime import platform

V, D = 24, 8
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, V, (3, 5)).astype(np.int32)
WEIGHTS = RNG.normal(size=LABELS.shape).astype(np.float32)


X, TABLE, BIAS = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 5, D), (V, D), (V,)))
WITH_BIAS = Unprojected(X, TABLE, BIAS, jnp.dtype(jnp.float32), V)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def found_and_gradient(predicted, eps, tiles, z=0.0):
    def summed(predicted):
        found = tiled_token_losses(predicted, LABELS, eps, z, tiles)
        return (found.losses * WEIGHTS).sum(), found

    gradient, found = jax.grad(summed, has_aux=True)(predicted)
    return found, gradient


def apart(found, expected):
    """Largest relative distance between corresponding arrays of two trees."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(np.linalg.norm(np.float64(a) - b) / np.linalg.norm(b) for a, b in pairs)


CASES = [(5, 0.0, 0.0, None), (5, 0.1, 0.0, 1.5), (5, 0.1, 0.02, 1.5)]
CASES += [(tiles, 0.1, 0.02, 1.5) for tiles in (2, 8, 40)]


@pytest.mark.parametrize(("tiles", "eps", "z", "cap"), CASES)
def test_value_and_gradient_equal_those_of_all_logits(tiles, eps, z, cap):
    """Numbers of tiles that divide the vocabulary, that do not, and that exceed it."""
    predicted = WITH_BIAS.replace(cap=cap)
    found, gradient = found_and_gradient(predicted, eps, tiles, z)
    expected, expected_gradient = found_and_gradient(predicted, eps, 1, z)
    assert apart(found[:2], expected[:2]) < 1e-6
    np.testing.assert_array_equal(found.correct, expected.correct)
    assert apart(gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize(("tiles", "rows"), [(5, V + 8), (40, V)])
def test_a_teacher_is_compared_tile_by_tile(tiles, rows):
    """A teacher of another width, with another padding of its vocabulary."""
    x, table = RNG.normal(size=(3, 5, 6)), RNG.normal(size=(rows, 6))
    teacher = Unprojected(np.float32(x), np.float32(table), None, jnp.dtype(jnp.float32), V)
    student = WITH_BIAS.replace(cap=3.0)

    def divergence(one, tiles):
        if tiles == 1:
            return teacher_divergence(one.logits(), teacher.logits(), 2.0)
        return tiled_divergence(one, teacher, 2.0, tiles)

    @functools.partial(jax.jit, static_argnums=0)
    def found(tiles):
        summed = lambda one: (divergence(one, tiles) * WEIGHTS).sum()  # noqa: E731
        return divergence(student, tiles), jax.grad(summed)(student)

    assert apart(found(tiles), found(1)) < 1e-5


def test_a_teachers_top_k_is_compared_by_position():
    kept = TopPredictions.of_logits(jnp.float32(RNG.normal(size=(3, 5, V))), 6, 2.0)

    @functools.partial(jax.jit, static_argnums=0)
    def found(tiles):
        def divergence(one):
            if tiles == 1:
                return top_k_divergence(one.logits(), kept, 2.0)
            return tiled_divergence(one, kept, 2.0, tiles)

        return divergence(WITH_BIAS), jax.grad(lambda one: divergence(one).sum())(WITH_BIAS)

    assert apart(found(4), found(1)) < 1e-5


def test_a_bias_is_optional():
    without = WITH_BIAS.replace(bias=None)
    found, gradient = found_and_gradient(without, 0.1, 5)
    zero = WITH_BIAS.replace(bias=np.zeros(V, np.float32))
    expected, expected_gradient = found_and_gradient(zero, 0.1, 1)
    assert gradient.bias is None
    assert apart(found[:2], expected[:2]) < 1e-6
    assert apart(gradient, expected_gradient.replace(bias=None)) < 1e-6


def test_products_are_rounded_as_those_of_layers():
    rounded = WITH_BIAS.replace(dtype=jnp.dtype(jnp.bfloat16))
    found, gradient = found_and_gradient(rounded, 0.1, 4)
    expected, expected_gradient = found_and_gradient(rounded, 0.1, 1)
    assert 1e-6 < apart(gradient, found_and_gradient(WITH_BIAS, 0.1, 4)[1]) < 1e-2
    assert apart(found[:2], expected[:2]) < 1e-6
    assert apart(gradient, expected_gradient) < 5e-3
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


@functools.partial(jax.jit, static_argnums=1)
def correct_in_tiles(table, tiles):
    """Whether each of four labels is the prediction of logits that are the table's rows."""
    predicted = Unprojected(jnp.ones((4, 1)), table, None, jnp.dtype(jnp.float32), 4)
    return tiled_token_losses(predicted, jnp.arange(4), tiles=tiles).correct


@pytest.mark.parametrize("tiles", [2, 3])
@pytest.mark.parametrize(
    ("logits", "right"),
    [([1, 3, 3, 2], 1), ([3, 2, 3, 3], 0), ([0, 1, 2, 3], 3), ([np.nan, 1, 1, 1], None)],
)
def test_of_equal_logits_in_several_tiles_the_first_is_the_prediction(tiles, logits, right):
    correct = np.asarray(correct_in_tiles(np.array(logits, np.float32)[:, None], tiles))
    assert correct.tolist() == [label == right for label in range(4)]


def test_large_logits_do_not_overflow():
    table = jnp.array([[1e4], [0], [-1e4]], jnp.float32)
    predicted = Unprojected(jnp.ones((1, 1)), table, None, jnp.dtype(jnp.float32), 3)
    loss = lambda predicted: tiled_token_losses(predicted, jnp.array([1]), tiles=3).losses[0]  # noqa: E731
    value, grad = jax.jit(jax.value_and_grad(loss))(predicted)
    assert value == 1e4
    np.testing.assert_allclose(grad.table[:, 0], [1, -1, 0], atol=1e-6)


def test_tiles_are_used_by_default_only_on_accelerators(compiling_for):
    """GPT-2's vocabulary and 32,768 tokens: 6.1 GiB of logits, in eight tiles on an H100, each
    less than a 64th of its memory; four devices hold a fourth each."""
    labels = np.zeros((32, 1024), np.int32)
    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 1024, D), (50_257, D)))
    predicted = Unprojected(*shapes, None, jnp.dtype(jnp.bfloat16), 50_257)

    def columns():
        loss = lambda predicted: tiled_token_losses(predicted, labels).losses.sum()  # noqa: E731
        text = jax.jit(jax.grad(loss)).lower(predicted).as_text()
        return max(map(int, re.findall(r"tensor<32768x(\d+)xf32>", text)))

    assert columns() == 50_257
    compiling_for("gpu", "NVIDIA H100 80GB HBM3")
    assert columns() == -(-50_257 // 8)
    with platform.sharded_over(4):
        assert columns() == -(-50_257 // 2)
    with platform.sharded_over(64):  # all logits would fit, but are read several times
        assert columns() == -(-50_257 // 2)
