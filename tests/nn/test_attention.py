# SPDX-License-Identifier: Apache-2.0
"""Attention equals slow loops, of one head and of several."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, run
from transformer_jax.nn.attention import (
    MultiHeadAttention,
    Sequences,
    attention_logits,
    scaled_dot_product_attention,
)
from transformer_jax.nn.cache import Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.ops import softmax
from transformer_jax.nn.positions import POSITIONS, PositionEncoding

B, T, S, H, K, V, D = 2, 3, 4, 2, 5, 3, 16
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, BIAS = (
    RNG.normal(size=shape).astype(np.float32)
    for shape in [(B, T, H, K), (B, S, H, K), (B, S, H, V), (B, H, T, S)]
)
MASK = RNG.random((B, 1, T, S)) < 0.6
MASK[0, 0] = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]  # one key, no key, every key


# --- The pure function.


def attention_weights(query, key, mask=None, bias=None):
    return run(lambda *arrays: softmax(attention_logits(*arrays), mask), query, key, bias)


def slow_softmax(logits):
    exponentials = [math.exp(x) for x in logits]
    return [x / sum(exponentials) for x in exponentials]


def slow_attention(query, key, value, mask=None, bias=None, cap=1e9):
    """Equation 1, one query of one head at a time."""
    mask = np.ones((B, 1, T, S), bool) if mask is None else mask
    bias = np.zeros((B, H, T, S)) if bias is None else bias
    result = np.zeros((B, T, H, V))
    for b, t, h in np.ndindex(B, T, H):
        seen = [s for s in range(S) if mask[b, 0, t, s]]
        products = [query[b, t, h] @ key[b, s, h] / math.sqrt(K) + bias[b, h, t, s] for s in seen]
        capped = [cap * math.tanh(x / cap) for x in products]
        for s, weight in zip(seen, slow_softmax(capped), strict=True):
            result[b, t, h] += weight * value[b, s, h]
    return result


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize(("bias", "cap"), [(None, None), (BIAS, 0.5)])
def test_against_a_slow_loop(mask, bias, cap):
    expected = slow_attention(QUERY, KEY, VALUE, mask, bias, cap or 1e9)
    options = {"logit_bias": bias, "logit_cap": cap}
    result = run(scaled_dot_product_attention, QUERY, KEY, VALUE, mask, **options)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_a_query_without_a_key_has_a_gradient_of_0():
    def total(query, key, value):
        return scaled_dot_product_attention(query, key, value, MASK, logit_bias=BIAS)[0, 1].sum()

    for grad in jax.jit(jax.grad(total, argnums=(0, 1, 2)))(QUERY, KEY, VALUE):
        np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize("masked", [True, False])
def test_the_softmax_and_its_gradient_are_those_of_jax(masked):
    rng = np.random.default_rng(0)
    logits, cotangent = rng.normal(0, 100, (2, 4, 5, 6)).astype(np.float32)  # e^100 overflows
    mask = rng.random(logits.shape) < 0.6 if masked else None
    if masked:
        mask[0, 0] = False

    @functools.partial(jax.jit, static_argnums=0)
    def value_and_gradient(function, logits, cotangent):
        value, backward = jax.vjp(function, logits)
        return value, *backward(cotangent)

    weights, gradient = value_and_gradient(lambda x: softmax(x, mask), logits, cotangent)
    expected, of_jax = value_and_gradient(
        lambda x: jax.nn.softmax(x, where=mask), logits, cotangent
    )
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(gradient, of_jax, atol=1e-4)


# --- Several heads.


def attention(**changes):
    changes = {"key_size": K, "value_size": V, **changes}
    return MultiHeadAttention(TransformerConfig(d_model=D, num_heads=H, dtype="float32", **changes))


def attend_to(module, x, memory, mask, deterministic=True):
    return module.cross_attend(x, Memory.of(*module.keys_values(memory), mask), deterministic)


@pytest.fixture
def drawn(random_params):
    """`drawn(module)`: random variables of a module that attends from `X` to `MEMORY`."""
    return lambda module: random_params(module, X, MEMORY, MASK, method=attend_to)


def attended(module, variables, **options):
    return apply(module, variables, X, MEMORY, MASK, method=attend_to, **options)


def sown(module, variables, name="weights"):
    _, state = attended(module, variables, mutable="intermediates")
    (value,) = state["intermediates"][name]
    return value


X = RNG.normal(size=(B, T, D)).astype(np.float32)
MEMORY = RNG.normal(size=(B, S, D)).astype(np.float32)


def projected(params, x):
    return np.einsum("btd,dhk->bthk", x, params["kernel"]) + params.get("bias", 0)


@pytest.mark.parametrize(
    ("choice", "with_bias", "scale", "cap"),
    [("none", "", 1.0, None), ("qkv", "query key value", 0.07, None)]
    + [("output", "output", None, 0.1), ("all", "query key value output", None, None)],
)
def test_concatenated_heads(drawn, choice, with_bias, scale, cap):
    """The scale is 1 in T5; None: 1 / sqrt(d_k)."""
    module = attention(attention_bias=choice, attention_scale=scale, logit_cap=cap)
    variables = drawn(module)
    params = variables["params"]
    assert {name for name in params if "bias" in params[name]} == set(with_bias.split())
    query = projected(params["query"], X) * (scale * math.sqrt(K) if scale else 1)
    key, value = (projected(params[name], MEMORY) for name in ("key", "value"))
    heads = slow_attention(query, key, value, MASK, cap=cap or 1e9)
    concatenated = heads.reshape(B, T, H * V)
    expected = concatenated @ params["output"]["kernel"].reshape(H * V, D)
    expected += params["output"].get("bias", 0)
    result = attended(module, variables)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_self_attention_uses_the_encoding_s_rotation_and_bias(random_params):

    class Doubling(PositionEncoding):
        def rotate(self, query, key, positions):
            scale = 1 + positions[..., None, None]
            return query * scale, key / scale

        def bias(self, distance):
            return 0.5 * distance[:, None].astype(jnp.float32)

    module = attention()
    positions = np.array([[0, 1, 2], [0, 0, 1]])
    mask = np.ones((B, 1, T, T), bool)
    call = (X, Sequences(Doubling(module.config), positions, mask), True)
    variables = random_params(module, *call, method="self_attend")
    (_, cache), state = apply(
        module, variables, *call, method="self_attend", mutable="intermediates"
    )
    assert cache is None

    params, scale = variables["params"], 1 + positions[..., None, None]
    distance = positions[:, :, None] - positions[:, None]
    query, key = projected(params["query"], X) * scale, projected(params["key"], X) / scale
    expected = attention_weights(query, key, mask, -0.5 * distance[:, None])
    (weights,) = state["intermediates"]["weights"]
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


def literal(rows):
    return np.array([[int(c) for c in row] for row in rows.split()], bool)


@pytest.mark.parametrize("length", [6, 7])  # whole, and in blocks also where both sides are seen
@pytest.mark.parametrize(
    ("causal", "sees"),
    [
        (False, "1100000 1110000 0111000 0011100 0001110 0000111 0000011"),
        (True, "1000000 1100000 0110000 0011000 0001100 0000110 0000011"),
    ],
)
def test_a_window_of_two(random_params, length, causal, sees):
    module = attention(attention_window=2)
    encoding = POSITIONS["none"](TransformerConfig(), causal)
    mask = np.tri(length, dtype=bool) if causal else np.ones((length, length), bool)
    x = RNG.normal(size=(1, length, D)).astype(np.float32)
    places = np.arange(length)[None]
    call = (Sequences(encoding, places, mask[None, None]), True)
    variables = random_params(module, x, *call, method="self_attend")

    def output(x):
        return module.apply(variables, x, *call, method="self_attend")[0][0].sum(-1)

    jacobian = np.abs(jax.jit(jax.jacrev(output))(x)[:, 0]).sum(-1)
    np.testing.assert_array_equal(jacobian != 0, literal(sees)[:length, :length])


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_queries_and_keys_are_normed_by_head(drawn, epsilon):
    module = attention(qk_norm=True, norm_epsilon=epsilon, norm="rms_plus_one")
    variables = drawn(module)
    params = variables["params"]

    def normed(name, x):
        x = projected(params[name], x)
        root = np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x / root * params[f"norm_{name}"]["scale"]

    assert params["norm_query"]["scale"].shape == (K,)
    expected = attention_weights(normed("query", X), normed("key", MEMORY), MASK)
    np.testing.assert_allclose(sown(module, variables), expected, rtol=1e-4, atol=1e-5)


# --- Reading weights.


def test_weights_and_heads_are_sown(drawn):
    module = attention()
    variables = drawn(module)
    weights, heads = (sown(module, variables, name) for name in ("weights", "heads"))
    assert weights.shape == (B, H, T, S) and heads.shape == (B, T, H, V)
    value = projected(variables["params"]["value"], MEMORY)
    expected = np.einsum("bhts,bshv->bthv", weights, value)
    np.testing.assert_allclose(heads, expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_on_the_weights_after_they_are_sown(random_params):
    module = attention(attention_dropout_rate=0.5)
    mask = np.ones((B, 1, T, S), bool)
    variables = random_params(module, X, MEMORY, mask, method=attend_to)

    @jax.jit
    def dropped_and_sown(variables, key):
        weighed = []

        def watch(next_fun, args, kwargs, context):
            result = next_fun(*args, **kwargs)
            if context.method_name == "weigh":
                weighed.append(result)
            return result

        call = {"method": attend_to, "rngs": {"dropout": key}, "mutable": "intermediates"}
        with nn.intercept_methods(watch):
            _, state = module.apply(variables, X, MEMORY, mask, False, **call)
        return weighed[0], state["intermediates"]["weights"]

    dropped, (weights,) = jax.tree.map(np.asarray, dropped_and_sown(variables, jax.random.key(0)))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert 0.2 < np.mean(dropped == 0) < 0.8
    np.testing.assert_allclose(dropped, np.where(dropped == 0, 0, 2 * weights), rtol=1e-6)


# --- The cache.


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 2}, {"attention_bias": "all"}])
def test_one_product_gives_queries_keys_and_values(random_params, compiling_for, options):
    """On GPUs with enough rows; values and gradients equal those of three products."""
    config = TransformerConfig(d_model=16, num_heads=4, qk_norm=True, dtype="float32", **options)
    module = MultiHeadAttention(config)
    x = np.random.default_rng(0).normal(size=(2, 9, 16)).astype(np.float32)
    variables = random_params(module, x, method="projections")

    def projected(variables):
        return module.apply(variables, x, method="projections")

    def loss(variables):
        return sum(jnp.square(part).sum() for part in projected(variables))

    def found():
        products = str(jax.make_jaxpr(projected)(variables)).count("dot_general")
        return products, *run(lambda x: (projected(x), jax.grad(loss)(x)), variables)

    apart = found()
    compiling_for("gpu")
    joined = found()
    assert (apart[0], joined[0]) == (3, 1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), apart[1:], joined[1:]
    )
