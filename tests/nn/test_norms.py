# SPDX-License-Identifier: Apache-2.0
"""Norms equal their formulas, and their derivatives those of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.norms import NORMS, make_norm, standardize

X = np.random.default_rng(1).normal(2, 3, (2, 5, 16)).astype(np.float32)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
@pytest.mark.parametrize("name", list(NORMS))
def test_norms_are_their_formulas(random_params, name, epsilon):
    """Ba et al. (2016); Zhang and Sennrich (2019), equation 4; with 1 + scale, Gemma."""
    norm = make_norm(TransformerConfig(norm=name, norm_epsilon=epsilon))
    x = X / 8  # of a variance that the larger epsilon changes
    variables = random_params(norm, x)
    params = variables["params"]
    centered = x - x.mean(-1, keepdims=True) if name == "layer" else x
    y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    expected = y * (params["scale"] + (name == "rms_plus_one")) + params.get("bias", 0)
    np.testing.assert_allclose(norm.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(NORMS))
def test_an_initial_norm_scales_by_1(name):
    norm = make_norm(TransformerConfig(norm=name))
    y = norm.apply(norm.init(jax.random.key(0), X), X)
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-4)


@pytest.mark.parametrize(("ratio", "error"), [(100, 5e-5), (1000, 2e-4)])
def test_layer_norm_is_exact_where_the_mean_is_large(ratio, error):
    """Compared with double precision; mean(x^2) - mean(x)^2 has errors of 6e-3 and 0.2."""
    x = np.random.default_rng(0).normal(ratio, 1, (64, 512)).astype(np.float32)
    y = make_norm(TransformerConfig()).apply(
        {"params": {"scale": np.ones(512), "bias": np.zeros(512)}}, x
    )
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
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(derivatives(formula)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(NORMS))
def test_norms_are_float32_inside_and_out(random_params, name):
    norm = NORMS[name]()
    rounded = jnp.asarray(X, jnp.bfloat16)
    variables = random_params(norm, X)
    y = norm.apply(variables, rounded)
    assert y.dtype == jnp.float32
    np.testing.assert_array_equal(y, norm.apply(variables, rounded.astype(jnp.float32)))
