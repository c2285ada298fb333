"""Which type products run in, what is rounded, and gradients like those of plain products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import precision

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
        lambda *args: precision.einsum(*args, jnp.dtype("float32")), subscripts, *arrays
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
        lambda *args: precision.einsum(*args, jnp.dtype("bfloat16")), subscripts, a, b, cotangent
    )
    expected = value_and_gradients(jnp.einsum, subscripts, *whole)
    for x, rounded in zip(ours, expected, strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, rounded)


# --- 8-bit whole numbers.


def test_the_largest_of_each_output_is_127_steps():
    matrix = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    matrix[3] = 0
    rounded = precision.Int8Matrix.of(matrix)
    assert rounded.values.dtype == jnp.int8
    np.testing.assert_array_equal(np.abs(rounded.values).max(axis=1), [127, 127, 127, 0, 127])
    apart = np.abs(rounded.values * rounded.scales[:, None] - matrix)
    assert (apart <= rounded.scales[:, None] * 0.5001).all()
    np.testing.assert_allclose(rounded.rows(np.array([[2], [3]]))[:, 0], matrix[2:4], atol=0.02)


def test_products_of_whole_numbers_are_exact():
    rng = np.random.default_rng(0)
    x, matrix = rng.integers(-126, 127, (6, 300)), rng.integers(-126, 127, (5, 300))
    x[:, 0] = matrix[:, 0] = 127
    found = precision.Int8Matrix.of(matrix.astype(np.float32)).product(x.astype(np.float32))
    np.testing.assert_allclose(found, x @ matrix.T, rtol=1e-6)


def test_rows_have_scales_of_their_own():
    rng = np.random.default_rng(0)
    x, matrix = rng.normal(size=(4, 64)), rng.normal(size=(5, 64))
    x *= np.array([[1e-6], [1], [1e6], [0]])
    found = precision.Int8Matrix.of(matrix.astype(np.float32)).product(x.astype(np.float32))
    apart = np.abs(found - x @ matrix.T).max(axis=1)
    assert (apart <= 0.15 * np.abs(x).max(axis=1)).all()


# --- Few rows.


@pytest.mark.parametrize(
    ("device", "rows", "dtype"),
    [("cpu", 1, jnp.float32), ("cpu", 16, jnp.bfloat16), ("gpu", 1, jnp.bfloat16)],
)
def test_few_rows_stay_in_float32_on_a_cpu(device, rows, dtype, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    assert precision.dtype_for_rows(rows, jnp.bfloat16) == dtype


# --- What the hardware has.


@pytest.fixture
def cpu_with_flags(monkeypatch, tmp_path):
    """Pretends that the default device is a CPU with these flags."""

    def pretend(flags):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"model name : a CPU\nflags : fpu {flags} sse\n")
        monkeypatch.setattr(precision, "Path", lambda path: cpuinfo)
        monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
        precision._is_cpu_with_amx.cache_clear()

    yield pretend
    precision._is_cpu_with_amx.cache_clear()


def test_auto_is_float32_on_a_cpu_without_amx(cpu_with_flags):
    cpu_with_flags("avx512f")
    assert precision.product_dtype("auto") == jnp.float32
    assert precision.compiler_options() == {}


def test_auto_is_bfloat16_on_a_cpu_with_amx(cpu_with_flags):
    cpu_with_flags("avx512f amx_bf16 amx_tile")
    assert precision.product_dtype("auto") == jnp.bfloat16


def test_auto_is_bfloat16_on_an_accelerator(cpu_with_flags, monkeypatch):
    cpu_with_flags("avx512f")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert precision.product_dtype("auto") == jnp.bfloat16
    assert precision.compiler_options() == {}


def test_options_are_those_that_the_compiler_knows(cpu_with_flags, monkeypatch):
    cpu_with_flags("amx_bf16")
    monkeypatch.setattr(precision, "_compiler_knows", lambda options: True)
    assert precision.compiler_options() == {"xla_cpu_experimental_onednn_custom_call": True}
    monkeypatch.setattr(precision, "_compiler_knows", lambda options: False)
    assert precision.compiler_options() == {}


def test_an_unknown_option_is_noticed():
    assert precision._compiler_knows(())
    assert not precision._compiler_knows((("xla_cpu_option_of_no_release", True),))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_named_type_is_itself(name):
    assert precision.product_dtype(name) == jnp.dtype(name)


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="dtype is 'float16', not one of auto, float32, bfloat16"):
        precision.product_dtype("float16")
