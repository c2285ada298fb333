# SPDX-License-Identifier: Apache-2.0
"""int8 weights: quantized parameters, and models that use them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import small_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.int8 import Int8Matrix, convert_weights
from transformer_jax.nn.linear import Linear

RNG = np.random.default_rng(0)


def is_rounded(leaf):
    return isinstance(leaf, Int8Matrix)


def test_a_quantized_model_has_nearly_the_same_logits(random_params):
    changes = {"positions": "deberta", "attention_bias": "all", "num_key_value_heads": 2}
    model = DecoderOnly(small_config(d_model=32, d_ff=64, vocab_size=48, max_length=16, **changes))
    tokens = np.random.default_rng(0).integers(4, 48, (2, 12))
    arguments = (tokens, np.tile(np.arange(12), (2, 1)), np.ones((2, 12), int))
    params = random_params(model, *arguments)["params"]
    rounded = convert_weights("int8", params)

    names = {True: set(), False: set()}
    for path, leaf in jax.tree_util.tree_leaves_with_path(rounded, is_leaf=is_rounded):
        names[is_rounded(leaf)].add(jax.tree_util.keystr(path, simple=True, separator="/"))
    of_rounded, of_kept = names.values()
    assert all(name.endswith("kernel") or name == "embedding/table" for name in of_rounded)
    assert not any(name.endswith("kernel") for name in of_kept)
    assert {name.rsplit("/", 1)[1] for name in of_kept} >= {"bias", "scale"}
    assert any(name.endswith("table") for name in of_kept)

    exact = apply(model, {"params": params}, *arguments)
    found = apply(model, {"params": rounded}, *arguments)
    error = np.sqrt(np.square(found - exact).mean())
    assert 0 < error < 0.03 * exact.std()


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"), [("query", (6,), (2, 4)), ("output", (2, 4), (6,))]
)
def test_each_output_has_its_own_scale(random_params, name, inputs, outputs):
    """Outputs differ in size, so that small ones survive only with their own scales."""
    module = Linear(inputs, outputs, True, TransformerConfig(dtype="float32"))
    x = RNG.normal(size=(5, *inputs)).astype(np.float32)
    params = random_params(module, x)["params"]
    sizes = np.logspace(-6, 3, int(np.prod(outputs))).reshape(outputs).astype(np.float32)
    params = {"kernel": params["kernel"] * sizes, "bias": params["bias"] * sizes}
    rounded = convert_weights("int8", {name: params})[name]
    assert rounded["kernel"].scales.shape == (sizes.size,)
    exact = apply(module, {"params": params}, x)
    found = apply(module, {"params": rounded}, x)
    np.testing.assert_allclose(found / sizes, exact / sizes, atol=0.05)


# --- The matrix itself.


def test_the_largest_element_of_each_output_is_127():
    matrix = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    matrix[3] = 0
    rounded = Int8Matrix.of(matrix)
    assert rounded.values.dtype == jnp.int8
    np.testing.assert_array_equal(np.abs(rounded.values).max(axis=1), [127, 127, 127, 0, 127])
    apart = np.abs(rounded.values * rounded.scales[:, None] - matrix)
    assert (apart <= rounded.scales[:, None] * 0.5001).all()
    np.testing.assert_allclose(rounded.rows(np.array([[2], [3]]))[:, 0], matrix[2:4], atol=0.02)


def test_products_of_whole_numbers_are_exact():
    rng = np.random.default_rng(0)
    x, matrix = rng.integers(-126, 127, (6, 300)), rng.integers(-126, 127, (5, 300))
    x[:, 0] = matrix[:, 0] = 127
    found = Int8Matrix.of(matrix.astype(np.float32)).product(x.astype(np.float32))
    np.testing.assert_allclose(found, x @ matrix.T, rtol=1e-6)


def test_each_row_has_its_own_scale():
    rng = np.random.default_rng(0)
    x, matrix = rng.normal(size=(4, 64)), rng.normal(size=(5, 64))
    x *= np.array([[1e-6], [1], [1e6], [0]])
    found = Int8Matrix.of(matrix.astype(np.float32)).product(x.astype(np.float32))
    apart = np.abs(found - x @ matrix.T).max(axis=1)
    assert (apart <= 0.15 * np.abs(x).max(axis=1)).all()


def test_one_row_has_the_product_of_a_row_among_others():
    matrix = Int8Matrix.of(jnp.array(RNG.normal(size=(24, 16)), jnp.float32))
    rows = jnp.array(RNG.normal(size=(3, 16)), jnp.float32)
    product = jax.jit(matrix.product)
    one = product(rows[1:2])
    assert one.shape == (1, 24)
    np.testing.assert_array_equal(one[0], product(rows)[1])
