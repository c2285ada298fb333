# SPDX-License-Identifier: Apache-2.0
"""The three placements of the norm equal their formulas; dropout acts on sublayers' outputs."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.formulas import layer_norm
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.norms import LayerNorm, final_norm
from transformer_jax.nn.transformer import Residual

PLACEMENTS = ("post", "pre", "sandwich")
X = np.random.default_rng(1).normal(2, 3, (2, 5, 16)).astype(np.float32)
WEIGHT = np.random.default_rng(2).normal(size=(16, 16)).astype(np.float32)


def residual(placement, **changes):
    return Residual(TransformerConfig(d_model=16, num_heads=4, norm_placement=placement, **changes))


def around_a_sublayer(module, x, sublayer, deterministic=True):
    return module.after(x, sublayer(module.before(x)), deterministic)


def written_out(placement, params, x, sublayer):
    before, after = params.get("norm_before"), params.get("norm_after")
    match placement:
        case "post":
            return layer_norm(after, x + sublayer(x))
        case "pre":
            return x + sublayer(layer_norm(before, x))
        case "sandwich":
            return x + layer_norm(after, sublayer(layer_norm(before, x)))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_formula(random_params, placement):
    def sublayer(x):
        return x @ WEIGHT

    module = residual(placement)
    variables = random_params(module, X, sublayer, method=around_a_sublayer)
    y = apply(module, variables, X, sublayer, method=around_a_sublayer)
    expected = written_out(placement, variables["params"], X, sublayer)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_residual_connections_the_stream_is_what_a_sublayer_returns(
    random_params, placement
):
    module = residual(placement, residual_connections=False)
    variables = random_params(module, X, jnp.negative, method=around_a_sublayer)
    y = apply(module, variables, X, lambda x: x @ WEIGHT, method=around_a_sublayer)
    params = variables["params"]
    x = layer_norm(params["norm_before"], X) if "norm_before" in params else X
    expected = layer_norm(params["norm_after"], x @ WEIGHT) if placement != "pre" else x @ WEIGHT
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dropout_acts_only_on_the_sublayers_output(random_params, placement):
    module = residual(placement, dropout_rate=0.5)
    variables = random_params(module, X, jnp.ones_like, method=around_a_sublayer)

    def without_norms(next_fun, args, kwargs, context):
        return args[0] if isinstance(context.module, LayerNorm) else next_fun(*args, **kwargs)

    with nn.intercept_methods(without_norms):
        call = {"method": around_a_sublayer, "rngs": {"dropout": jax.random.key(0)}}
        y = apply(module, variables, X, jnp.ones_like, False, **call)
    np.testing.assert_allclose(np.unique(np.round(y - X, 3)), [0, 2])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_stack_ends_with_a_norm_if_its_layers_do_not(placement):
    config = TransformerConfig(norm_placement=placement)
    assert (final_norm(config) is None) == (placement == "post")
