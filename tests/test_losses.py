# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy equals that of explicit smoothed targets."""

import jax
import numpy as np
import optax
import pytest

from transformer_jax.losses import cross_entropy, token_losses

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
    loss = cross_entropy(LOGITS, LABELS, eps, z)
    np.testing.assert_allclose(loss, written_out, rtol=1e-5)


@SMOOTHING
def test_it_equals_optax(eps):
    loss = cross_entropy(LOGITS, LABELS, eps)
    smoothed = optax.smooth_labels(jax.nn.one_hot(LABELS, V), eps)
    np.testing.assert_allclose(loss, optax.softmax_cross_entropy(LOGITS, smoothed), rtol=1e-5)


@OPTIONS
def test_gradient(eps, z):
    weights = RNG.normal(size=LABELS.shape).astype(np.float32)
    grad = jax.grad(lambda logits: (cross_entropy(logits, LABELS, eps, z) * weights).sum())(LOGITS)
    of_probability = 1 + 2 * z * log_normalizer()[..., None]
    expected = of_probability * np.exp(log_softmax(LOGITS)) - smoothed_targets(eps)
    expected *= weights[..., None]
    np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6)


@SMOOTHING
def test_uniform_logits_cost_the_logarithm_of_the_vocabulary(eps):
    loss = cross_entropy(np.full((3, V), 7.0, np.float32), np.array([0, 4, V - 1]), eps)
    np.testing.assert_allclose(loss, np.log(V), rtol=1e-5)


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4, 0, -1e4]], np.float32)
    loss, grad = jax.value_and_grad(lambda x: cross_entropy(x, np.array([1]))[0])(logits)
    assert loss == pytest.approx(1e4)
    np.testing.assert_allclose(grad, [[1, -1, 0]], atol=1e-6)


@OPTIONS
def test_tangent(eps, z):
    """Forward mode, and forward over reverse for Hessian-vector products."""
    change = RNG.normal(size=LOGITS.shape).astype(np.float32)
    targets = smoothed_targets(eps).astype(np.float32)

    def plain(logits):
        cost = z * jax.nn.logsumexp(logits, axis=-1) ** 2
        return cost - (targets * jax.nn.log_softmax(logits)).sum(axis=-1)

    found, expected = (
        (jax.jvp(f, (LOGITS,), (change,))[1], jax.jvp(of_sum(f), (LOGITS,), (change,))[1])
        for f in (lambda logits: cross_entropy(logits, LABELS, eps, z), plain)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


def of_sum(losses):
    return jax.grad(lambda logits: (losses(logits) ** 2).sum())


def test_metrics_have_no_gradient():
    grad = jax.grad(lambda logits: token_losses(logits, LABELS).nll.sum())(LOGITS)
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
