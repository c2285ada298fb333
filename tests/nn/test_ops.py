# SPDX-License-Identifier: Apache-2.0
"""Products: dtypes, casts and gradients; heads that share keys equal heads with copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.nn.ops import dtype_for_rows, einsum, head_outputs, head_products
from transformer_jax.runtime import platform

PRODUCTS = [
    ("nd,df->nf", (6, 4), (4, 5)),
    ("bthk,bshk->bhts", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("bhts,bshv->bthv", (2, 2, 3, 5), (2, 5, 2, 4)),
]
B, T, S, H, K = 2, 3, 5, 6, 4
RNG = np.random.default_rng(0)


def value_and_gradients(product, subscripts, a, b, cotangent):
    def of_arrays(a, b, cotangent):
        value, vjp = jax.vjp(lambda a, b: product(subscripts, a, b), a, b)
        return value, *vjp(cotangent)

    return run(of_arrays, a, b, cotangent)


def operands(subscripts, a_shape, b_shape, draw):
    a, b = draw(a_shape), draw(b_shape)
    return a, b, draw(np.einsum(subscripts, a, b).shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("subscripts", "a_shape", "b_shape"), PRODUCTS)
def test_both_operands_and_the_cotangent_are_rounded(subscripts, a_shape, b_shape, dtype):
    """Small integers are exact in bfloat16; an added thousandth is rounded away."""
    whole = operands(
        subscripts, a_shape, b_shape, lambda shape: RNG.integers(-3, 4, shape).astype(np.float32)
    )
    arrays = [x * np.float32(1.001) for x in whole]
    ours = value_and_gradients(lambda *args: einsum(*args, jnp.dtype(dtype)), subscripts, *arrays)
    rounded = whole if dtype == "bfloat16" else arrays
    expected = value_and_gradients(jnp.einsum, subscripts, *rounded)
    for x, plain in zip(ours, expected, strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, plain, rtol=1e-5 * (dtype == "float32"), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_tangents_are_those_of_the_plain_product(on_cpu, dtype, monkeypatch):
    """Forward mode, and forward over reverse, with integers that are exact in bfloat16."""
    monkeypatch.setattr(platform, "is_cpu", lambda: on_cpu)
    subscripts, a_shape, b_shape = PRODUCTS[1]
    rng = np.random.default_rng(0)
    a, da = rng.integers(-3, 4, (2, *a_shape)).astype(np.float32)
    b, db = rng.integers(-3, 4, (2, *b_shape)).astype(np.float32)

    def tangents(product):
        def gradients(a, b):
            return jax.grad(lambda a, b: (product(a, b) ** 2).sum() / 64, (0, 1))(a, b)

        return run(
            lambda *args: [jax.jvp(f, args[:2], args[2:])[1] for f in (product, gradients)],
            *(a, b, da, db),
        )

    ours = tangents(lambda a, b: einsum(subscripts, a, b, jnp.dtype(dtype)))
    plain = tangents(lambda a, b: jnp.einsum(subscripts, a, b))
    tolerance = {"rtol": 0.02, "atol": 0.5} if dtype == "bfloat16" else {"rtol": 1e-5}
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), ours, plain)


# Compiled for an accelerator, where JAX's default precision is lower than float32.


def products_of_a_step(dtype, monkeypatch, target="cuda"):
    """StableHLO lines of the three products of a linear map and its gradients."""
    monkeypatch.setattr(platform, "is_cpu", lambda: False)

    def step(x, kernel, cotangent):
        y, vjp = jax.vjp(lambda x, w: einsum("nd,df->nf", x, w, jnp.dtype(dtype)), x, kernel)
        return y, *vjp(cotangent)

    arrays = (jnp.ones(shape) for shape in ((8, 4), (4, 6), (8, 6)))
    text = jax.jit(step).trace(*arrays).lower(lowering_platforms=(target,)).as_text()
    return [line for line in text.splitlines() if "dot_general" in line]


@pytest.mark.parametrize("target", ["cuda", "tpu"])
def test_products_on_an_accelerator(target, monkeypatch):
    """float32 is float32. bfloat16 products write bfloat16, so that no kernel rounds it; but the
    kernel's gradient, which devices add up, is float32."""
    exact, rounded = (
        products_of_a_step(dtype, monkeypatch, target) for dtype in ("float32", "bfloat16")
    )
    assert len(exact) == len(rounded) == 3
    for line in exact:
        assert "precision = [HIGHEST, HIGHEST]" in line and "bf16" not in line
    results = []
    for line in rounded:
        operands, result = line.rsplit(" : ", 1)[1].split(" -> ")
        assert "bf16" in operands
        results.append(result)
    assert sorted(results) == ["tensor<6x4xf32>", "tensor<8x4xbf16>", "tensor<8x6xbf16>"]
    (of_kernel,) = (line for line in rounded if "-> tensor<6x4xf32>" in line)
    assert "lhs_precision_type = bf16, rhs_precision_type = bf16" in of_kernel
    assert "accumulation_type = f32" in of_kernel


def test_exact_products_of_bfloat16_are_not_rounded():
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(64, 64)), jnp.bfloat16) for _ in range(2))
    expected = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    exact, rounded = (
        einsum("nd,vd->nv", *(each.astype(jnp.float32) for each in (a, b)), jnp.bfloat16, exact)
        for exact in (True, False)
    )
    np.testing.assert_allclose(exact, expected, atol=1e-4)
    assert np.abs(rounded - expected).max() > 1e-2
    assert len(np.unique(rounded)) < len(np.unique(exact))


def test_bfloat16_is_what_onednn_multiplies_on_a_cpu():
    def total(x, kernel):
        return einsum("nd,df->nf", x, kernel, jnp.bfloat16).sum()

    jaxpr = jax.make_jaxpr(jax.grad(total, (0, 1)))(jnp.ones((8, 4)), jnp.ones((4, 6)))
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(products) >= 2
    for product in products:
        dtypes = {v.aval.dtype for v in (*product.invars, *product.outvars)}
        assert dtypes == {jnp.dtype(jnp.bfloat16)}


# --- One row.


def test_one_row_stays_in_float32_on_a_cpu(compiling_for):
    compiling_for("cpu")
    assert dtype_for_rows(1, jnp.bfloat16) == jnp.float32
    assert dtype_for_rows(2, jnp.bfloat16) == jnp.bfloat16
    compiling_for("gpu")
    assert dtype_for_rows(1, jnp.bfloat16) == jnp.bfloat16


# --- Heads that share keys and values.


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_neighboring_heads_share_keys(groups):
    query, shared, weights = (
        RNG.normal(size=shape).astype(np.float32)
        for shape in [(B, T, H, K), (B, S, groups, K), (B, H, T, S)]
    )
    copies = np.repeat(shared, H // groups, axis=2)
    products = np.einsum("bthk,bshk->bhts", query, copies)
    np.testing.assert_allclose(run(head_products, query, shared, jnp.float32), products, atol=1e-5)
    sums = np.einsum("bhts,bshk->bthk", weights, copies)
    np.testing.assert_allclose(run(head_outputs, weights, shared, jnp.float32), sums, atol=1e-5)


def test_no_key_is_repeated():
    query, key = jnp.ones((B, 1, H, K)), jnp.ones((B, 50, 1, K))
    jaxpr = jax.make_jaxpr(lambda query, key: head_products(query, key, jnp.float32))(query, key)
    sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
    assert max(sizes) == B * 50 * H  # the products
