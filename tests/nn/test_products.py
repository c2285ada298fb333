"""The dtype of products, what is cast, and gradients like those of plain products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.nn.products import dtype_for_rows, einsum, product_dtype

PRODUCTS = [
    ("nd,df->nf", (6, 4), (4, 5)),
    ("bthk,bshk->bhts", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("bhts,bshv->bthv", (2, 2, 3, 5), (2, 5, 2, 4)),
]


def value_and_gradients(product, subscripts, a, b, cotangent):
    value, vjp = jax.vjp(lambda a, b: product(subscripts, a, b), a, b)
    return value, *vjp(cotangent)


def operands(subscripts, a_shape, b_shape, draw):
    a, b = draw(a_shape), draw(b_shape)
    return a, b, draw(np.einsum(subscripts, a, b).shape)


@pytest.mark.parametrize(("subscripts", "a_shape", "b_shape"), PRODUCTS)
def test_float32_is_the_plain_product(subscripts, a_shape, b_shape):
    rng = np.random.default_rng(0)
    arrays = operands(
        subscripts, a_shape, b_shape, lambda shape: rng.normal(size=shape).astype(np.float32)
    )
    ours = value_and_gradients(
        lambda *args: einsum(*args, jnp.dtype("float32")), subscripts, *arrays
    )
    plain = value_and_gradients(jnp.einsum, subscripts, *arrays)
    for x, expected in zip(ours, plain, strict=True):
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("subscripts", "a_shape", "b_shape"), PRODUCTS)
def test_bfloat16_rounds_both_operands_and_the_cotangent(subscripts, a_shape, b_shape):
    """Small whole numbers are exact in bfloat16; a thousandth on top of them is rounded away."""
    rng = np.random.default_rng(0)
    whole = operands(
        subscripts, a_shape, b_shape, lambda shape: rng.integers(-3, 4, shape).astype(np.float32)
    )
    a, b, cotangent = (x * np.float32(1.001) for x in whole)
    ours = value_and_gradients(
        lambda *args: einsum(*args, jnp.dtype("bfloat16")), subscripts, a, b, cotangent
    )
    expected = value_and_gradients(jnp.einsum, subscripts, *whole)
    for x, rounded in zip(ours, expected, strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, rounded)


# --- Few rows.


@pytest.mark.parametrize(
    ("device", "rows", "dtype"),
    [("cpu", 1, jnp.float32), ("cpu", 16, jnp.bfloat16), ("gpu", 1, jnp.bfloat16)],
)
def test_few_rows_stay_in_float32_on_a_cpu(device, rows, dtype, compiling_for):
    compiling_for(device)
    assert dtype_for_rows(rows, jnp.bfloat16) == dtype


# --- Dtypes by name.


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_named_type_is_itself(name):
    assert product_dtype(name) == jnp.dtype(name)


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="dtype is 'float16', not one of auto, float32, bfloat16"):
        product_dtype("float16")
