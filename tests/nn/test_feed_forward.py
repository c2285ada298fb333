# SPDX-License-Identifier: Apache-2.0
"""The position-wise network equals equation 2."""

import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.compiled import apply
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.linear import Linear

X = np.random.default_rng(1).normal(size=(2, 5, 16)).astype(np.float32)


def feed_forward(**changes):
    return FeedForward(
        TransformerConfig(d_model=16, d_ff=24, num_heads=4, dtype="float32", **changes)
    )


def relu(x):
    return np.maximum(0, x)


def gelu(x):
    """Computes x Phi(x), with the normal distribution function Phi."""
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("name", "activation", "gated"),
    [("relu", relu, False), ("gelu", gelu, False), ("gelu_exact", gelu, False)]
    + [("silu", silu, False), ("swish", silu, False)]
    + [("squared_relu", lambda x: relu(x) ** 2, False)]
    + [("gelu", gelu, True), ("silu", silu, True)],  # GEGLU, SwiGLU
)
def test_the_formula(random_params, name, activation, gated):
    """With a gate, Shazeer (2020), equation 6, with biases."""
    module = feed_forward(activation=name, gated_feed_forward=gated)
    variables = random_params(module, X, True)
    assert variables["params"]["inner"]["kernel"].shape == (16, 24)

    def linear(part, x):
        return x @ variables["params"][part]["kernel"] + variables["params"][part]["bias"]

    hidden = activation(linear("gate", X)) * linear("inner", X) if gated else None
    hidden = activation(linear("inner", X)) if hidden is None else hidden
    # GELU is computed by its tanh approximation, good to 5e-4 an activation.
    atol = (2e-2 if gated else 5e-3) if name == "gelu" else (1e-4 if gated else 1e-5)
    found = apply(module, variables, X, True)
    np.testing.assert_allclose(found, linear("outer", hidden), atol=atol)


@pytest.mark.parametrize("gated", [False, True])
def test_biases_are_optional(random_params, gated):
    options = {"activation": "silu", "gated_feed_forward": gated}
    module = feed_forward(**options, feed_forward_bias=False)
    variables = random_params(module, X, True)
    assert all(set(part) == {"kernel"} for part in variables["params"].values())
    zero = {
        name: part | {"bias": np.zeros(part["kernel"].shape[1], np.float32)}
        for name, part in variables["params"].items()
    }
    expected = apply(feed_forward(**options), {"params": zero}, X, True)
    np.testing.assert_allclose(apply(module, variables, X, True), expected, atol=1e-6)


def test_dropout_acts_on_the_inner_activations(random_params):
    module = feed_forward(feed_forward_dropout_rate=0.5)
    variables = random_params(module, X, True)

    @jax.jit
    def inputs_and_outputs(variables, key):
        seen = {}

        def watch(next_fun, args, kwargs, context):
            y = next_fun(*args, **kwargs)
            if isinstance(context.module, Linear):
                seen[context.module.name] = args[0], y
            return y

        with nn.intercept_methods(watch):
            module.apply(variables, X, False, rngs={"dropout": key})
        return seen

    seen = inputs_and_outputs(variables, jax.random.key(0))
    activations, dropped = np.asarray(relu(seen["inner"][1])), np.asarray(seen["outer"][0])
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 2 * activations[kept], rtol=1e-6)
    assert np.mean(kept[activations > 0]) == pytest.approx(0.5, abs=0.15)
