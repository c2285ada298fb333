# SPDX-License-Identifier: Apache-2.0
"""Linear maps: formula, shapes and Xavier's bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, run
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.lora import AdaptedMatrix, LowRankAdapter

CONFIG = TransformerConfig(dtype="float32")
HEADS = [((6,), (4, 3)), ((4, 3), (6,)), ((6,), (5,))]


@pytest.mark.parametrize(("inputs", "outputs"), HEADS)
@pytest.mark.parametrize("use_bias", [False, True])
def test_contracts_the_last_axes(random_params, inputs, outputs, use_bias):
    linear = Linear(inputs, outputs, use_bias, CONFIG)
    x = np.random.default_rng(1).normal(size=(2, 7, *inputs)).astype(np.float32)
    variables = random_params(linear, x)
    params = variables["params"]

    assert params["kernel"].shape == (*inputs, *outputs)
    assert set(params) == ({"kernel", "bias"} if use_bias else {"kernel"})
    expected = np.tensordot(x, params["kernel"], axes=len(inputs))
    expected += params["bias"] if use_bias else 0
    np.testing.assert_allclose(apply(linear, variables, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "fan_in", "fan_out"),
    [
        ((64,), (256,), 64, 256),
        ((64,), (8, 16), 64, 128),  # all heads are outputs of the same 64
        ((8, 16), (64,), 128, 64),
    ],
)
def test_kernels_are_xavier_uniform_over_all_heads(inputs, outputs, fan_in, fan_out):
    linear = Linear(inputs, outputs, True, CONFIG)
    params = run(linear.init, jax.random.key(0), np.ones((1, *inputs), np.float32))["params"]
    bound = np.sqrt(6 / (fan_in + fan_out))
    assert 0.99 * bound < np.abs(params["kernel"]).max() <= bound
    assert np.std(params["kernel"]) == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert not params["bias"].any()


def test_the_matrix_of_a_map_is_an_array_whatever_the_kernel():
    linear, rng = Linear((6,), (4, 3), False, CONFIG), np.random.default_rng(1)
    x, kernel = rng.normal(size=(7, 6)), rng.normal(size=(6, 4, 3)).astype(np.float32)
    adapter = LowRankAdapter(rng.normal(size=(6, 2)), rng.normal(size=(2, 12)), 0.5, 0.0)
    rounded = Int8Matrix.of(jnp.array(kernel.reshape(6, 12).T))
    for given, tolerance in (
        (kernel, 1e-5),
        (AdaptedMatrix(kernel, adapter), 1e-5),
        (rounded, 0.1),
    ):
        variables = {"params": {"kernel": given}}
        matrix = apply(linear, variables, method="matrix")
        expected = apply(linear, variables, jnp.array(x, jnp.float32))
        np.testing.assert_allclose(np.tensordot(x, matrix, 1), expected, atol=tolerance)
