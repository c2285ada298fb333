# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy equals that of explicit smoothed targets, distillation its formula; losses computed
tile by tile equal those of all logits."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import assert_near, run
from tests.refusals import assert_refused
from transformer_jax import losses
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.runtime import platform

V = 11
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (2, 5, V)).astype(np.float32)
LABELS = RNG.integers(0, V, (2, 5)).astype(np.int32)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("eps", "z"), [(0.0, 0.0), (0.4, 0.0), (0.1, 0.02)])
def test_value_and_derivatives_are_those_of_smoothed_targets(eps, z):
    """Targets of 1 - eps for the label, plus eps / V for each token including the label. Reverse
    mode, forward mode, and forward over reverse for Hessian-vector products."""
    targets = np.float32((1 - eps) * np.eye(V)[LABELS] + eps / V)
    weights = RNG.normal(size=LABELS.shape).astype(np.float32)
    change = RNG.normal(size=LOGITS.shape).astype(np.float32)

    def written_out(logits):
        cost = z * jax.nn.logsumexp(logits, axis=-1) ** 2
        return cost - (targets * jax.nn.log_softmax(logits)).sum(axis=-1)

    def derivatives(loss, logits, change):
        gradient = jax.grad(lambda logits: (loss(logits) ** 2 * weights).sum())
        return [jax.jvp(function, (logits,), (change,)) for function in (loss, gradient)]

    fused = lambda logits: losses.cross_entropy(logits, LABELS, eps, z)  # noqa: E731
    found = run(derivatives, fused, LOGITS, change)
    assert_near(found, run(derivatives, written_out, LOGITS, change), 1e-5)
    expected = z * np.log(np.exp(np.float64(LOGITS)).sum(axis=-1)) ** 2
    expected -= (targets * log_softmax(LOGITS)).sum(axis=-1)
    np.testing.assert_allclose(found[0][0], expected, rtol=1e-5)


# --- Losses by name ---


class Brier(losses.TokenLoss):
    """Sum of (p - target)^2 over the vocabulary."""

    def losses(self, logits, labels):
        target = jax.nn.one_hot(labels, logits.shape[-1])
        return jnp.square(jax.nn.softmax(logits) - target).sum(axis=-1)


def test_a_loss_by_name_trains_and_the_likelihood_is_still_reported(with_entries):
    with_entries(losses.TOKEN_LOSSES, {"own": Brier})
    options = losses.LossOptions(0.1, None, 0.0, 0.0, loss="own")
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
    assert isinstance(plain, losses.CrossEntropy)
    np.testing.assert_array_equal(plain.of_hidden(predicted, LABELS).losses, found.nll)


def test_a_loss_that_returns_a_mean_is_refused(with_entries):
    mean = type("Mean", (Brier,), {"losses": lambda *args: Brier.losses(*args).mean()})
    with_entries(losses.TOKEN_LOSSES, {"own": mean})
    loss = losses.LossOptions(0.1, None, 0.0, 0.0, loss="own").token_loss
    call = functools.partial(loss.of_logits, LOGITS, LABELS)
    assert_refused({"'own' returns an array of shape () for labels of shape (2, 5)": call})


# --- Distillation ---

TAUGHT = RNG.normal(0, 3, LOGITS.shape).astype(np.float32)


def test_the_divergence_from_a_teacher():
    t = 2.5
    p, q = (log_softmax(logits / t) for logits in (TAUGHT, LOGITS))
    written_out = t**2 * (np.exp(p) * (p - q)).sum(axis=-1)
    divergence = run(losses.teacher_divergence, LOGITS, TAUGHT, t)
    np.testing.assert_allclose(divergence, written_out, rtol=1e-4)
    assert np.abs(run(losses.teacher_divergence, LOGITS, LOGITS + 7.0, t)).max() < 1e-4
    summed = lambda *logits: losses.teacher_divergence(*logits, t).sum()  # noqa: E731
    gradient, of_teacher = run(jax.grad(summed, (0, 1)), LOGITS, TAUGHT)
    np.testing.assert_allclose(gradient, t * (np.exp(q) - np.exp(p)), rtol=1e-3, atol=1e-5)
    assert not np.any(of_teacher)


@pytest.mark.parametrize("k", [4, V])
def test_the_rest_of_the_vocabulary_is_one_class(k):
    kept = run(losses.TopPredictions.of_logits, TAUGHT, k, 2.0)
    p, q = (np.exp(log_softmax(logits / 2.0)) for logits in (TAUGHT, LOGITS))
    order = np.argsort(-p, axis=-1)[..., :k]
    chosen = [np.take_along_axis(probabilities, order, -1) for probabilities in (p, q)]
    p, q = (np.append(top, 1 - top.sum(-1, keepdims=True) + 1e-12, axis=-1) for top in chosen)
    written_out = 4 * (p * np.log(p / q)).sum(-1)
    found = run(losses.top_k_divergence, LOGITS, kept, 2.0)
    np.testing.assert_allclose(found, written_out, rtol=1e-3, atol=1e-5)
    whole = run(losses.teacher_divergence, LOGITS, TAUGHT, 2.0)
    assert np.all(found <= whole + 1e-4) and np.allclose(found, whole, rtol=1e-4) == (k == V)
    summed = lambda logits: losses.top_k_divergence(logits, kept, 2.0).sum()  # noqa: E731
    assert np.all(np.isfinite(run(jax.grad(summed), LOGITS)))


def test_distillation_mixes_both_losses():
    options = losses.DistillationOptions("a run", weight=0.3, temperature=2.0)
    loss = losses.LossOptions(0.1, None, 0.0, 0.02, "distillation", options=(options,)).token_loss
    ce = run(losses.cross_entropy, LOGITS, LABELS, 0.1, 0.02)
    found = run(loss.of_taught, LOGITS, TAUGHT, LABELS)
    expected = 0.7 * ce + 0.3 * run(losses.teacher_divergence, LOGITS, TAUGHT, 2.0)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-5)
    np.testing.assert_allclose(found.nll, run(losses.cross_entropy, LOGITS, LABELS), rtol=1e-5)
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
        found = losses.tiled_token_losses(predicted, TILE_LABELS, eps, z, tiles)
        return (found.losses * TILE_WEIGHTS).sum(), found

    gradient, found = jax.grad(summed, has_aux=True)(predicted)
    return found, gradient


def apart(found, expected):
    """Largest relative distance between corresponding arrays of two trees."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(np.linalg.norm(np.float64(a) - b) / np.linalg.norm(b) for a, b in pairs)


@pytest.mark.parametrize(
    ("tiles", "eps", "z", "changes", "devices"),
    [
        (5, 0.0, 0.0, {}, 1),
        (5, 0.1, 0.0, {"bias": None}, 2),
        *((tiles, 0.1, 0.02, {"cap": 1.5}, 1) for tiles in (5, 8, 40)),
        *((tiles, 0.1, 0.02, {"cap": 1.5}, 2) for tiles in (5, 40)),
    ],
)
def test_value_and_gradient_equal_those_of_all_logits(tiles, eps, z, changes, devices):
    """Numbers of tiles that divide the vocabulary, that do not, and that exceed it. Tiles of a
    table that devices divide are interleaved."""
    predicted = WITH_BIAS.replace(**changes)
    with platform.sharded_over(devices):
        found, gradient = found_and_gradient(predicted, eps, tiles, z)
    expected, expected_gradient = found_and_gradient(predicted, eps, 1, z)
    assert apart(found[:2], expected[:2]) < 1e-6
    np.testing.assert_array_equal(found.correct, expected.correct)
    assert apart(gradient, expected_gradient) < 1e-6


def another_teacher(rows):
    """A teacher of another width, with another padding of its vocabulary."""
    x, table = RNG.normal(size=(3, 5, 6)), RNG.normal(size=(rows, 6))
    return Unprojected(np.float32(x), np.float32(table), None, jnp.dtype(jnp.float32), TILED_V)


@pytest.mark.parametrize(
    ("tiles", "rows", "devices"),
    [(5, TILED_V + 8, 1), (5, TILED_V + 8, 2), (40, TILED_V, 1), (4, None, 2)],
)
def test_a_teacher_is_compared_tile_by_tile_and_its_top_k_by_position(tiles, rows, devices):
    logits = jnp.float32(RNG.normal(size=(3, 5, TILED_V)))
    top_k = losses.TopPredictions.of_logits(logits, 6, 2.0)
    teacher = another_teacher(rows) if rows else top_k

    def in_tiles(student):
        return losses.tiled_divergence(student, teacher, 2.0, tiles)

    def whole(student):
        if rows:
            return losses.teacher_divergence(student.logits(), teacher.logits(), 2.0)
        return losses.top_k_divergence(student.logits(), top_k, 2.0)

    @functools.partial(jax.jit, static_argnums=0)
    def found(divergence):
        student = WITH_BIAS.replace(cap=3.0)
        summed = lambda student: (divergence(student) * TILE_WEIGHTS).sum()  # noqa: E731
        return divergence(student), jax.grad(summed)(student)

    with platform.sharded_over(devices):
        assert apart(found(in_tiles), found(whole)) < 1e-5


def test_tiles_of_a_teacher_know_its_offset():
    """The same number added to all logits changes no probability: those of models trained without
    z-loss are far from 0, and a normalizer far from 0 has a rounding error of every probability."""
    student, teacher = WITH_BIAS, another_teacher(len(WITH_BIAS.table))
    expected = losses.teacher_divergence(student.logits(), teacher.logits(), 1.0)
    shifted = teacher.replace(bias=np.full(len(teacher.table), -2000, np.float32))
    found = jax.jit(lambda *models: losses.tiled_divergence(*models, 1.0, 5))(student, shifted)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_tiles_of_a_table_on_one_device_are_not_transposed():
    """A transposed table, and its gradient, would be copied in each step."""
    for devices, expected in ((1, False), (2, True)):
        with platform.sharded_over(devices):
            text = found_and_gradient.lower(WITH_BIAS, 0.1, 4).as_text()
        shapes = re.findall(r"stablehlo.transpose .* -> tensor<(\S+)xf32>", text)
        assert (f"4x{TILED_V // 4}x{D}" in shapes) == expected


def test_products_are_rounded_as_those_of_layers():
    rounded = WITH_BIAS.replace(dtype=jnp.dtype(jnp.bfloat16))
    found, gradient = found_and_gradient(rounded, 0.1, 4)
    expected, expected_gradient = found_and_gradient(rounded, 0.1, 1)
    assert 1e-6 < apart(gradient, found_and_gradient(WITH_BIAS, 0.1, 4)[1]) < 1e-2
    assert apart(found[:2], expected[:2]) < 1e-6
    assert apart(gradient, expected_gradient) < 5e-3
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_of_equal_logits_the_first_is_the_prediction(tiles):
    """With equal logits one label of four is correct; with NaN none is."""

    @jax.jit
    def correct(logits):
        """Whether each of four labels is the prediction of logits that are a table's rows."""
        predicted = Unprojected(jnp.ones((4, 1)), logits[:, None], None, jnp.dtype("float32"), 4)
        return losses.tiled_token_losses(predicted, jnp.arange(4), tiles=tiles).correct

    predictions = {(1, 3, 3, 2): 1, (3, 2, 3, 3): 0, (3, 3, 3, 3): 0, (0, 1, 2, 3): 3}
    predictions |= {(np.nan,) * 4: None, (np.nan, 1, 1, 1): None}
    for logits, right in predictions.items():
        expected = [label == right for label in range(4)]
        assert correct(np.float32(logits)).tolist() == expected, logits


@pytest.mark.parametrize("tiles", [1, 3])
def test_large_logits_do_not_overflow(tiles):
    table = jnp.array([[1e4], [0], [-1e4]], jnp.float32)
    predicted = Unprojected(jnp.ones((1, 1)), table, None, jnp.dtype(jnp.float32), 3)
    labels = jnp.array([1])
    loss = lambda predicted: losses.tiled_token_losses(predicted, labels, tiles=tiles).losses[0]  # noqa: E731
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
        loss = lambda predicted: losses.tiled_token_losses(predicted, labels).losses.sum()  # noqa: E731
        text = jax.jit(jax.grad(loss)).lower(predicted).as_text()
        return max(map(int, re.findall(r"tensor<32768x(\d+)xf32>", text)))

    assert columns() == 50_257
    compiling_for("gpu", "NVIDIA H100 80GB HBM3")
    assert columns() == -(-50_257 // 8)
    with platform.sharded_over(4):
        assert columns() == -(-50_257 // 2)
    with platform.sharded_over(64):  # all logits would fit, but are read several times
        assert columns() == -(-50_257 // 2)
