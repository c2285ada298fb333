# SPDX-License-Identifier: Apache-2.0
"""Norms equal their formulas, and their derivatives those of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compiled import apply, run
from transformer_jax.nn.auxiliary import COLLECTION
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.norms import NORMS, BatchNorm, make_norm, real_tokens, standardize
from transformer_jax.nn.parameters import SIDE_GRADIENT, parameter_at
from transformer_jax.training.optimizer import update_statistics

X = np.random.default_rng(1).normal(2, 3, (2, 5, 16)).astype(np.float32)
OF_A_VECTOR = [name for name in NORMS if name != "batch"]


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
@pytest.mark.parametrize("name", OF_A_VECTOR)
def test_norms_are_their_formulas(random_params, name, epsilon):
    """Ba et al. (2016); Zhang and Sennrich (2019), equation 4; with 1 + scale, Gemma. They are
    float32 inside and out."""
    norm = make_norm(TransformerConfig(norm=name, norm_epsilon=epsilon))
    x = X / 8  # of a variance that the larger epsilon changes
    variables = random_params(norm, x)
    params = variables["params"]
    centered = x - x.mean(-1, keepdims=True) if name.startswith("layer") else x
    y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    expected = y * (params["scale"] + (name == "rms_plus_one")) + params.get("bias", 0)
    np.testing.assert_allclose(apply(norm, variables, x), expected, rtol=1e-4, atol=1e-5)
    rounded = jnp.asarray(x, jnp.bfloat16)
    y = apply(norm, variables, rounded)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, apply(norm, variables, rounded.astype(jnp.float32)))


@pytest.mark.parametrize("name", OF_A_VECTOR)
def test_an_initial_norm_scales_by_1(name):
    norm = make_norm(TransformerConfig(norm=name))
    y = apply(norm, run(norm.init, jax.random.key(0), X), X)
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-4)


@pytest.mark.parametrize(("ratio", "error"), [(100, 5e-5), (1000, 2e-4)])
def test_layer_norm_is_exact_where_the_mean_is_large(ratio, error):
    """Compared with double precision; mean(x^2) - mean(x)^2 has errors of 6e-3 and 0.2."""
    x = np.random.default_rng(0).normal(ratio, 1, (64, 512)).astype(np.float32)
    params = {"scale": np.ones(512), "bias": np.zeros(512)}
    y = apply(make_norm(TransformerConfig()), {"params": params}, x)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(y, exact, atol=error)


@pytest.mark.parametrize(("centered", "epsilon"), [(True, 1e-6), (False, 1e-6), (True, 2.0)])
def test_derivatives_are_those_of_the_formula(centered, epsilon):
    """Reverse mode, forward mode, and forward over reverse, as for Hessians."""
    direction, weights = np.random.default_rng(2).normal(size=(2, *X.shape)).astype(np.float32)

    def formula(x):
        x = x - x.mean(-1, keepdims=True) if centered else x
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + epsilon)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(norm):
        gradient = jax.grad(lambda x: (weights * jnp.tanh(norm(x))).sum())
        return jax.jvp(norm, (X,), (direction,)), jax.jvp(gradient, (X,), (direction,))

    found = derivatives(functools.partial(standardize, centered=centered, epsilon=epsilon))
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(assert_close, found, derivatives(formula))


# --- BatchNorm ---

REAL = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)


def test_a_training_step_normalizes_by_the_real_tokens_of_its_batch(random_params):
    norm = BatchNorm(1e-3)
    params = random_params(norm, X)["params"]

    def loss(params, x):
        with real_tokens(REAL):
            y, _ = norm.apply({"params": params}, x, mutable=[COLLECTION])
        return y.sum(), y

    (gradient, by_x), y = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, X)
    tokens = X[REAL].astype(np.float64)
    mean, variance = tokens.mean(0), tokens.var(0)
    expected = (X - mean) / np.sqrt(variance + 1e-3) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    sums = np.stack([tokens.sum(0), 7 * variance, np.full(16, 7)])
    np.testing.assert_allclose(gradient["averages"] / -SIDE_GRADIENT, sums, rtol=1e-4)
    padding = X + 100 * ~REAL[..., None]
    np.testing.assert_array_equal(loss(params, padding)[1][REAL], loss(params, X)[1][REAL])
    assert np.abs(by_x[REAL].sum(0)).max() > 1e-3  # the other tokens' outputs depend on these


def test_elsewhere_it_normalizes_by_averages_of_updates():
    """A batch counts by its tokens; averages begin at 0, which cancels in the ratio."""
    norm, optimizer = BatchNorm(0.0), update_statistics(optax.sgd(1.0))
    params = {"final_norm": run(norm.init, jax.random.key(0), X)["params"]}
    np.testing.assert_allclose(apply(norm, {"params": params["final_norm"]}, X), X, rtol=1e-6)
    assert parameter_at("decoder/final_norm/averages").kind == "average"
    state, total = optimizer.init(params), np.zeros((3, 16))
    for rows in (X[:1], 3 * X, X[:, :2]):  # 5, 10 and 4 tokens
        tokens = rows.reshape(-1, 16).astype(np.float64)
        count = len(tokens)
        sums = np.stack([tokens.sum(0), count * tokens.var(0), np.full(16, count)])
        grads = {"averages": jnp.float32(-SIDE_GRADIENT * sums), "bias": 0.0, "scale": 0.0}
        updates, state = optimizer.update({"final_norm": grads}, state, params)
        params = optax.apply_updates(params, updates)
        total = 0.9 * total + 0.1 * sums
    mean, variance = total[0] / total[2], total[1] / total[2]
    found = apply(norm, {"params": params["final_norm"]}, X)
    np.testing.assert_allclose(found, (X - mean) / np.sqrt(variance), rtol=1e-4, atol=1e-4)
