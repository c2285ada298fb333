# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy equals that of explicit smoothed targets, distillation its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compiled import run
from transformer_jax.errors import UserError
from transformer_jax.losses import (
    TOKEN_LOSSES,
    CrossEntropy,
    DistillationOptions,
    LossOptions,
    TokenLoss,
    TopPredictions,
    cross_entropy,
    teacher_divergence,
    token_losses,
    top_k_divergence,
)
from transformer_jax.nn.embeddings import Unprojected

V = 11
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (2, 5, V)).astype(np.float32)
LABELS = RNG.integers(0, V, (2, 5)).astype(np.int32)
SMOOTHING = pytest.mark.parametrize("eps", [0.0, 0.1, 0.4])
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
def test_value(eps, z):
    written_out = -(smoothed_targets(eps) * log_softmax(LOGITS)).sum(axis=-1)
    written_out += z * log_normalizer() ** 2
    loss = run(cross_entropy, LOGITS, LABELS, eps, z)
    np.testing.assert_allclose(loss, written_out, rtol=1e-5)


@SMOOTHING
def test_it_equals_optax(eps):
    def of_optax(logits, labels):
        smoothed = optax.smooth_labels(jax.nn.one_hot(labels, V), eps)
        return optax.softmax_cross_entropy(logits, smoothed)

    loss = run(cross_entropy, LOGITS, LABELS, eps)
    np.testing.assert_allclose(loss, run(of_optax, LOGITS, LABELS), rtol=1e-5)


@OPTIONS
def test_gradient(eps, z):
    weights = RNG.normal(size=LABELS.shape).astype(np.float32)
    weighted = lambda logits: (cross_entropy(logits, LABELS, eps, z) * weights).sum()  # noqa: E731
    grad = run(jax.grad(weighted), LOGITS)
    of_probability = 1 + 2 * z * log_normalizer()[..., None]
    expected = of_probability * np.exp(log_softmax(LOGITS)) - smoothed_targets(eps)
    expected *= weights[..., None]
    np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6)


@SMOOTHING
def test_uniform_logits_cost_the_logarithm_of_the_vocabulary(eps):
    loss = run(cross_entropy, np.full((3, V), 7.0, np.float32), np.array([0, 4, V - 1]), eps)
    np.testing.assert_allclose(loss, np.log(V), rtol=1e-5)


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


def test_metrics_have_no_gradient():
    grad = run(jax.grad(lambda logits: token_losses(logits, LABELS).nll.sum()), LOGITS)
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize(
    ("logits", "right"),
    [([1, 3, 3, 2], 1), ([3, 3, 3, 3], 0), ([0, 1, 2, 3], 3), ([np.nan] * 4, None)],
)
def test_of_equal_logits_the_first_is_the_prediction(logits, right):
    """With equal logits one label of four is correct; with NaN none is."""
    row = np.array(logits, np.float32)
    for label in range(4):
        assert token_losses(row, np.array(label)).correct == (label == right)


# --- Losses by name ---


class Brier(TokenLoss):
    """Sum of (p - target)^2 over the vocabulary."""

    def losses(self, logits, labels):
        target = jax.nn.one_hot(labels, logits.shape[-1])
        return jnp.square(jax.nn.softmax(logits) - target).sum(axis=-1)


@pytest.fixture
def registered():
    before = dict(TOKEN_LOSSES)
    yield lambda cls: TOKEN_LOSSES.register("own", cls)
    TOKEN_LOSSES.restore(before)


def test_a_loss_by_name_trains_and_the_likelihood_is_still_reported(registered):
    registered(Brier)
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


def test_a_loss_that_returns_a_mean_is_refused(registered):
    registered(type("Mean", (Brier,), {"losses": lambda *args: Brier.losses(*args).mean()}))
    with pytest.raises(UserError, match=r"'own' returns an array of shape \(\) for labels .*2, 5"):
        LossOptions(0.1, None, 0.0, 0.0, loss="own").token_loss.of_logits(LOGITS, LABELS)


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
