# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy equals that of explicit smoothed targets, distillation its formula; losses computed
tile by tile equal those of all logits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from tests.refusals import assert_refused
from transformer_jax.losses import (
    TOKEN_LOSSES,
    CrossEntropy,
    DistillationOptions,
    LossOptions,
    TokenLoss,
    TopPredictions,
    cross_entropy,
    teacher_divergence,
    tiled_divergence,
    tiled_token_losses,
    token_losses,
    top_k_divergence,
)
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.runtime import platform

V = 11
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (2, 5, V)).astype(np.float32)
LABELS = RNG.integers(0, V, (2, 5)).astype(np.int32)
OPTIONS = pytest.mark.parametrize(("eps", "z"), [(0.0, 0.0), (0.1, 0.0), (0.4, 0.0), (0.1, 0.02)])


def smoothed_targets(eps):
    """Targets of 1 - eps for the label, plus eps / V for each token including the label."""
    return (1 - eps) * np.eye(V)[LABELS] + eps / V


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def log_normalizer():
    return np.log(np.exp(LOGITS.astype(np.float64)).sum(axis=-1))


@OPTIONS
def test_value_and_gradient(eps, z):
    weights = RNG.normal(size=LABELS.shape).astype(np.float32)

    def weighted(logits):
        losses = cross_entropy(logits, LABELS, eps, z)
        return (losses * weights).sum(), losses

    gradient, losses = run(jax.grad(weighted, has_aux=True), LOGITS)
    written_out = -(smoothed_targets(eps) * log_softmax(LOGITS)).sum(axis=-1)
    written_out += z * log_normalizer() ** 2
    np.testing.assert_allclose(losses, written_out, rtol=1e-5)
    of_probability = 1 + 2 * z * log_normalizer()[..., None]
    expected = of_probability * np.exp(log_softmax(LOGITS)) - smoothed_targets(eps)
    expected *= weights[..., None]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4, 0, -1e4]], np.float32)
    first = jax.value_and_grad(lambda x: cross_entropy(x, np.array([1]))[0])
    loss, grad = run(first, logits)
    assert loss == pytest.approx(1e4)
    np.testing.assert_allclose(grad, [[1, -1, 0]], atol=1e-6)


@pytest.mark.parametrize(("eps", "z"), [(0.4, 0.0), (0.1, 0.02)])
def test_tangent(eps, z):
    """Forward mode, and forward over reverse for Hessian-vector products."""
    change = RNG.normal(size=LOGITS.shape).astype(np.float32)
    targets = smoothed_targets(eps).astype(np.float32)

    def plain(logits):
        cost = z * jax.nn.logsumexp(logits, axis=-1) ** 2
        return cost - (targets * jax.nn.log_softmax(logits)).sum(axis=-1)

    found, expected = (
        run(lambda *x, f=f: [jax.jvp(g, *x)[1] for g in (f, of_sum(f))], (LOGITS,), (change,))
        for f in (lambda logits: cross_entropy(logits, LABELS, eps, z), plain)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


def of_sum(losses):
    return jax.grad(lambda logits: (losses(logits) ** 2).sum())


def test_of_equal_logits_the_first_is_the_prediction():
    """With equal logits one label of four is correct; with NaN none is."""
    predictions = {(1, 3, 3, 2): 1, (3, 3, 3, 3): 0, (0, 1, 2, 3): 3, (np.nan,) * 4: None}
    for logits, right in predictions.items():
        row = np.array(logits, np.float32)
        correct = [bool(token_losses(row, np.array(label)).correct) for label in range(4)]
        assert correct == [label == right for label in range(4)], logits


# --- Losses by name ---


class Brier(TokenLoss):
    """Sum of (p - target)^2 over the vocabulary."""

    def losses(self, logits, labels):
        target = jax.nn.one_hot(labels, logits.shape[-1])
        return jnp.square(jax.nn.softmax(logits) - target).sum(axis=-1)


def test_a_loss_by_name_trains_and_the_likelihood_is_still_reported(with_entries):
    with_entries(TOKEN_LOSSES, {"own": Brier})
    options = LossOptions(0.1, None, 0.0, 0.0, loss="own")
    rng = np.random.default_rng(1)
    x, table = rng.normal(0, 1, (2, 5, 3)), rng.normal(0, 1, (V, 3))
    predicted = Unprojected(jnp.float32(x), jnp.float32(table), None, jnp.float32, V)
    found = run(options.token_loss.of_hidden, predicted, LABELS)
    log_p = log_softmax(x @ table.T)
    brier = np.square(np.exp(log_p) - np.eye(V)[LABELS]).sum(axis=-1)
    np.testing.assert_allclose(found.losses, brier, rtol=1e-4)
    np.testing.assert_allclose(found.nll, -(np.eye(V)[LABELS] * log_p).sum(axis=-1), rtol=1e-4)
    assert found.correct.tolist() == (log_p.argmax(axis=-1) == LABELS).tolist()
    plain = options.unregularized.token_loss
    assert isinstance(plain, CrossEntropy)
    np.testing.assert_array_equal(plain.of_hidden(predicted, LABELS).losses, found.nll)


def test_a_loss_that_returns_a_mean_is_refused(with_entries):
    mean = type("Mean", (Brier,), {"losses": lambda *args: Brier.losses(*args).mean()})
    with_entries(TOKEN_LOSSES, {"own": mean})
    loss = LossOptions(0.1, None, 0.0, 0.0, loss="own").token_loss
    call = functools.partial(loss.of_logits, LOGITS, LABELS)
    assert_refused({"'own' returns an array of shape () for labels of shape (2, 5)": call})


# --- Distillation ---

TAUGHT = RNG.normal(0, 3, LOGITS.shape).astype(np.float32)


@pytest.mark.parametrize("t", [1.0, 2.5])
def test_the_divergence_from_a_teacher(t):
    p, q = (log_softmax(logits / t) for logits in (TAUGHT, LOGITS))
    written_out = t**2 * (np.exp(p) * (p - q)).sum(axis=-1)
    np.testing.assert_allclose(run(teacher_divergence, LOGITS, TAUGHT, t), written_out, rtol=1e-4)
    assert np.abs(run(teacher_divergence, LOGITS, LOGITS + 7.0, t)).max() < 1e-4
    summed = lambda *logits: teacher_divergence(*logits, t).sum()  # noqa: E731
    gradient, of_teacher = run(jax.grad(summed, (0, 1)), LOGITS, TAUGHT)
    np.testing.assert_allclose(gradient, t * (np.exp(q) - np.exp(p)), rtol=1e-3, atol=1e-5)
    assert not np.any(of_teacher)


@pytest.mark.parametrize("k", [1, 4, V - 1, V])
def test_the_rest_of_the_vocabulary_is_one_class(k):
    kept = run(TopPredictions.of_logits, TAUGHT, k, 2.0)
    p, q = (np.exp(log_softmax(logits / 2.0)) for logits in (TAUGHT, LOGITS))
    order = np.argsort(-p, axis=-1)[..., :k]
    classes = []
    for each in (p, q):
        chosen = np.take_along_axis(each, order, -1)
        classes.append(np.append(chosen, 1 - chosen.sum(-1, keepdims=True) + 1e-12, axis=-1))
    written_out = 4 * (classes[0] * np.log(classes[0] / classes[1])).sum(-1)
    found = run(top_k_divergence, LOGITS, kept, 2.0)
    np.testing.assert_allclose(found, written_out, rtol=1e-3, atol=1e-5)
    whole = run(teacher_divergence, LOGITS, TAUGHT, 2.0)
    assert np.all(found <= whole + 1e-4) and np.allclose(found, whole, rtol=1e-4) == (k >= V - 1)
    gradient = run(jax.grad(lambda logits: top_k_divergence(logits, kept, 2.0).sum()), LOGITS)
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_distillation_mixes_both_losses(weight):
    own = DistillationOptions("a run", weight, temperature=2.0)
    loss = LossOptions(0.1, None, 0.0, 0.02, "distillation", options=(own,)).token_loss
    ce = run(cross_entropy, LOGITS, LABELS, 0.1, 0.02)
    found = run(loss.of_taught, LOGITS, TAUGHT, LABELS)
    expected = (1 - weight) * ce + weight * run(teacher_divergence, LOGITS, TAUGHT, 2.0)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    np.testing.assert_allclose(found.nll, run(cross_entropy, LOGITS, LABELS), rtol=1e-5)
    np.testing.assert_allclose(run(loss.of, jnp.array(LOGITS), LABELS).losses, ce, rtol=1e-5)


# --- Tile by tile ---

TILED_V, D = 24, 8
TILE_LABELS = RNG.integers(0, TILED_V, (3, 5)).astype(np.int32)
TILE_WEIGHTS = RNG.normal(size=TILE_LABELS.shape).astype(np.float32)
X, TABLE, BIAS = (
    RNG.normal(size=shape).astype(np.float32) for shape in ((3, 5, D), (TILED_V, D), (TILED_V,))
)
WITH_BIAS = Unprojected(X, TABLE, BIAS, jnp.dtype(jnp.float32), TILED_V)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def found_and_gradient(predicted, eps, tiles, z=0.0):
    def summed(predicted):
        found = tiled_token_losses(predicted, TILE_LABELS, eps, z, tiles)
        return (found.losses * TILE_WEIGHTS).sum(), found

    gradient, found = jax.grad(summed, has_aux=True)(predicted)
    return found, gradient


def apart(found, expected):
    """Largest relative distance between corresponding arrays of two trees."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(np.linalg.norm(np.float64(a) - b) / np.linalg.norm(b) for a, b in pairs)


TILE_CASES = [(5, 0.0, 0.0, None), (5, 0.1, 0.0, 1.5), (5, 0.1, 0.02, 1.5)]
TILE_CASES += [(tiles, 0.1, 0.02, 1.5) for tiles in (2, 8, 40)]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("tiles", "eps", "z", "cap"), TILE_CASES)
def test_value_and_gradient_equal_those_of_all_logits(tiles, eps, z, cap, devices):
    """Numbers of tiles that divide the vocabulary, that do not, and that exceed it. Tiles of a
    table that devices divide are interleaved."""
    predicted = WITH_BIAS.replace(cap=cap)
    with platform.sharded_over(devices):
        found, gradient = found_and_gradient(predicted, eps, tiles, z)
    expected, expected_gradient = found_and_gradient(predicted, eps, 1, z)
    assert apart(found[:2], expected[:2]) < 1e-6
    np.testing.assert_array_equal(found.correct, expected.correct)
    assert apart(gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(("tiles", "rows"), [(5, TILED_V + 8), (40, TILED_V)])
def test_a_teacher_is_compared_tile_by_tile(tiles, rows, devices):
    """A teacher of another width, with another padding of its vocabulary."""
    x, table = RNG.normal(size=(3, 5, 6)), RNG.normal(size=(rows, 6))
    teacher = Unprojected(np.float32(x), np.float32(table), None, jnp.dtype(jnp.float32), TILED_V)
    student = WITH_BIAS.replace(cap=3.0)

    def divergence(one, tiles):
        if tiles == 1:
            return teacher_divergence(one.logits(), teacher.logits(), 2.0)
        return tiled_divergence(one, teacher, 2.0, tiles)

    @functools.partial(jax.jit, static_argnums=0)
    def found(tiles):
        summed = lambda one: (divergence(one, tiles) * TILE_WEIGHTS).sum()  # noqa: E731
        return divergence(student, tiles), jax.grad(summed)(student)

    with platform.sharded_over(devices):
        in_tiles = found(tiles)
    assert apart(in_tiles, found(1)) < 1e-5


def test_tiles_of_a_table_on_one_device_are_not_transposed():
    """A transposed table, and its gradient, would be copied in each step."""
    for devices, expected in ((1, False), (2, True)):
        with platform.sharded_over(devices):
            text = found_and_gradient.lower(WITH_BIAS, 0.1, 4).as_text()
        shapes = re.findall(r"stablehlo.transpose .* -> tensor<(\S+)xf32>", text)
        assert (f"4x{TILED_V // 4}x{D}" in shapes) == expected


def test_a_teachers_top_k_is_compared_by_position():
    kept = TopPredictions.of_logits(jnp.float32(RNG.normal(size=(3, 5, TILED_V))), 6, 2.0)

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
    zero = WITH_BIAS.replace(bias=np.zeros(TILED_V, np.float32))
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
def test_of_equal_logits_in_several_tiles_the_first_is_the_prediction(tiles):
    predictions = {(1, 3, 3, 2): 1, (3, 2, 3, 3): 0, (0, 1, 2, 3): 3, (np.nan, 1, 1, 1): None}
    for logits, right in predictions.items():
        correct = np.asarray(correct_in_tiles(np.array(logits, np.float32)[:, None], tiles))
        assert correct.tolist() == [label == right for label in range(4)], logits


def test_large_logits_do_not_overflow_in_tiles():
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
