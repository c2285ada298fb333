# SPDX-License-Identifier: Apache-2.0
"""Gated linear attention equals its recurrence in float64 and what transformers computes."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from tests.models.texts import PADDED
from tests.refusals import assert_refused
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.gated_delta import (
    GatedDeltaNet,
    GatedDeltaOptions,
    chunked_delta_rule,
    delta_rule_step,
    inverse_of_unit_lower,
    l2_normalize,
)
from transformer_jax.nn.layers import check_layers
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.sublayers import Sequences

FIXTURE = np.load(Path(__file__).parent / "fixtures" / "gated_delta.npz")
NAMES = ("query", "key", "value", "log_decay", "strength")
LAYER_PARAMETERS = (
    *("in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "A_log", "dt_bias"),
    *("norm.weight", "out_proj.weight"),
)


def close(found, expected, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


def rule_inputs():
    """Inputs of the fixture: queries and keys normalized, states as the paper has them."""
    given = {name: FIXTURE[f"rule_{name}"] for name in (*NAMES, "state")}
    return [*(given[name] for name in NAMES), given["state"].swapaxes(-1, -2)]


def normalized(query, key, *rest):
    """transformers normalizes inside its function, and scales queries."""
    return (l2_normalize(query) * query.shape[-1] ** -0.5, l2_normalize(key), *rest)


def recurrence(query, key, value, log_decay, strength, state):
    """Equation 10 in NumPy, token by token, in float64."""
    outputs = np.zeros(value.shape)
    state = np.array(state, np.float64)
    for n, t, h in np.ndindex(*value.shape[:3]):
        k, write = key[n, t, h].astype(np.float64), float(strength[n, t, h])
        fade = np.exp(np.float64(log_decay[n, t, h]))
        state[n, h] = fade * state[n, h] @ (np.eye(len(k)) - write * np.outer(k, k))
        state[n, h] += write * np.outer(value[n, t, h], k)
        outputs[n, t, h] = state[n, h] @ query[n, t, h]
    return outputs, state


def steps(query, key, value, log_decay, strength, state):
    """The step of decoding, scanned over tokens."""
    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (query, key, value, log_decay, strength))
    state, outputs = jax.lax.scan(lambda s, token: delta_rule_step(s, *token), state, tokens)
    return jnp.moveaxis(outputs, 0, 1), state


def chunks_of(size):
    return partial(chunked_delta_rule, chunk_size=size)


@pytest.mark.parametrize("function", [steps, chunks_of(4), chunks_of(64)])
def test_the_rule_and_its_gradients_are_those_of_transformers(function):
    def loss(*inputs):
        outputs, state = function(*normalized(*inputs))
        cotangent = FIXTURE["rule_state_cotangent"].swapaxes(-1, -2)
        total = (outputs * FIXTURE["rule_cotangent"]).sum() + (state * cotangent).sum()
        return total, (outputs, state)

    inputs = rule_inputs()
    gradients, (outputs, state) = jax.jit(jax.grad(loss, range(6), has_aux=True))(*inputs)
    close(outputs, FIXTURE["rule_outputs"])
    close(state, FIXTURE["rule_last_state"].swapaxes(-1, -2))
    for name, gradient in zip((*NAMES, "state"), gradients, strict=True):
        expected = FIXTURE[f"rule_{name}_gradient"]
        close(gradient, expected.swapaxes(-1, -2) if name == "state" else expected)


@pytest.fixture(scope="module")
def extreme():
    """37 tokens whose gates keep and forget everything by turns, with repeated keys."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, 37, 2, 6)).astype(np.float32) for _ in range(2))
    key[:, 10:30] = key[:, 10:11]  # a nearly singular system within a chunk
    value = rng.normal(size=(2, 37, 2, 4)).astype(np.float32)
    log_decay = -np.exp(6 * rng.normal(size=(2, 37, 2))).astype(np.float32)  # to -1e7
    log_decay[:, 10:30] = 0
    log_decay[0, 33] = -np.inf
    strength = (rng.uniform(size=(2, 37, 2)) < 0.7).astype(np.float32)
    state = rng.normal(size=(2, 2, 4, 6)).astype(np.float32)
    query, key = (np.asarray(l2_normalize(x)) for x in (query, key))
    return query, key, value, log_decay, strength, state


def test_extreme_gates_lose_no_digits(extreme):
    outputs, state = recurrence(*extreme)

    def results(function):
        def loss(*inputs):
            outputs, state = function(*inputs)
            return (outputs**2).sum(), (outputs, state)

        return run(jax.grad(loss, range(6), has_aux=True), *extreme)

    expected, _ = results(steps)
    gradients, (found, last) = results(chunks_of(8))
    close(found, outputs)
    close(last, state)
    for gradient, step_gradient in zip(gradients, expected, strict=True):
        close(gradient, step_gradient)


def test_no_gradient_passes_a_reset_or_a_later_token(extreme):
    """-inf hides what came before exactly, within a chunk and across; the rule is causal."""
    log_decay = extreme[3].copy()
    log_decay[:, 21] = -np.inf

    def output(query, key, value, strength, state):
        return chunks_of(8)(query, key, value, log_decay, strength, state)[0][:, 27].sum()

    gradients = run(jax.grad(output, range(5)), *extreme[:3], *extreme[4:])
    for gradient in gradients[:4]:
        assert not gradient[:, :21].any() and not gradient[:, 28:].any()
    assert gradients[2][:, 21:28].any() and not gradients[4].any()


def test_the_inverse_and_its_tangent():
    lower = np.tril(np.random.default_rng(0).normal(size=(3, 5, 5)), -1).astype(np.float32)
    of_both = lambda *x: jax.jvp(inverse_of_unit_lower, x[:1], x[1:])  # noqa: E731
    found, tangent = run(of_both, lower, lower[::-1])
    inverse = np.linalg.inv(np.eye(5) + lower)
    close(found, inverse)
    close(tangent, -inverse @ lower[::-1] @ inverse, atol=1e-4)


def test_memory_is_linear_in_the_tokens():
    def gradient_bytes(length):
        shapes = [(1, length, 1, 8)] * 3 + [(1, length, 1)] * 2
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        gradient = jax.grad(lambda *inputs: chunks_of(8)(*inputs)[0].sum(), range(5))
        program = jax.jit(gradient).lower(*arguments).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert gradient_bytes(1024) < 4.4 * gradient_bytes(256)


# The layer


def layer_config(**changes):
    options = GatedDeltaOptions(key_heads=2, value_heads=4, chunk_size=4)
    fields = {"key_size": 3, "value_size": 5, "d_model": 12, "d_ff": 16, "num_heads": 2}
    fields |= {"architecture": "decoder_only", "positions": "none", "num_layers": 1}
    fields |= {"norm_placement": "pre", "attention_layer": "gated_delta", "options": (options,)}
    return TransformerConfig(**fields | {"dtype": "float32", "vocab_size": 11} | changes)


def hybrid_config(**changes):
    pattern = {"layers": "default | attention_layer=multi_head", "num_layers": 2}
    return layer_config(positions="rotary", key_size=4, **pattern | changes)


def qwen3_next_params(suffix=""):
    """Parameters of the fixture's layer, or their gradients, by our paths."""
    given = {name: FIXTURE[f"layer_{name}{suffix}"] for name in LAYER_PARAMETERS}
    # By head of keys: query, key, and the values and gates of two heads.
    query, key, value, gate = np.split(
        given["in_proj_qkvz.weight"].reshape(2, 26, 12), [3, 6, 16], 1
    )
    strength, decay = np.split(given["in_proj_ba.weight"].reshape(2, 4, 12), 2, 1)
    taps = np.split(given["conv1d.weight"][:, 0].T, [6, 12], axis=1)

    def kernel(rows, *heads):
        return {"kernel": rows.reshape(-1, 12).T.reshape(12, *heads)}

    return {
        "query": kernel(query, 2, 3),
        "key": kernel(key, 2, 3),
        "value": kernel(value, 4, 5),
        "output_gate": kernel(gate, 4, 5),
        "strength": kernel(strength, 4),
        "decay": kernel(decay, 4),
        "query_taps": taps[0].reshape(4, 2, 3),
        "key_taps": taps[1].reshape(4, 2, 3),
        "value_taps": taps[2].reshape(4, 4, 5),
        "A_log": given["A_log"],
        "dt_bias": given["dt_bias"],
        "norm_heads": {"scale": given["norm.weight"]},
        "output": {"kernel": given["out_proj.weight"].T.reshape(4, 5, 12)},
    }


def test_the_layer_and_its_gradients_are_those_of_qwen3_next():
    layer = GatedDeltaNet(layer_config())
    encoding = PositionEncoding(layer_config(), causal=True)
    positions, segments = np.tile(np.arange(9), (2, 1)), np.ones((2, 9), int)
    sequences = Sequences.packed(encoding, positions, segments)

    def loss(params, x):
        y, _ = layer.apply({"params": params}, x, sequences, True, method="self_attend")
        return (y * FIXTURE["layer_cotangent"]).sum(), y

    params, x = qwen3_next_params(), FIXTURE["layer_x"]
    (gradients, x_gradient), y = run(jax.grad(loss, (0, 1), has_aux=True), params, x)
    close(y, FIXTURE["layer_y"])
    close(x_gradient, FIXTURE["layer_x_gradient"])
    jax.tree.map(close, gradients, qwen3_next_params("_gradient"))


@pytest.fixture(scope="module")
def model():
    """One layer of gated linear attention, then one of full attention."""
    return DecoderOnly(hybrid_config())


@pytest.fixture(scope="module")
def variables(model, random_params):
    return random_params(model, *PADDED)


@pytest.fixture(scope="module")
def prefill(model):
    """(variables, prompts [3, 7], lengths) -> logits, memory and state with 12 slots."""
    return jax.jit(lambda *inputs: model.apply(*inputs, 12, method="prefill"))


@pytest.fixture(scope="module")
def step(model):
    return jax.jit(partial(model.apply, method="decode_step"))


def test_decoding_equals_the_forward_pass(model, variables, prefill, step):
    """Prompts of unequal lengths, shorter and longer than the convolutions, then single tokens."""
    rng = np.random.default_rng(0)
    tokens, lengths = rng.integers(1, 11, size=(3, 12)), np.array([1, 4, 7])
    full = run(model.apply, variables, tokens)
    prompt = np.where(np.arange(7) < lengths[:, None], tokens[:, :7], 0)
    logits, memory, state = prefill(variables, prompt, lengths)
    rows = np.arange(3)
    close(logits, full[rows, lengths - 1])
    for i in range(4):
        logits, state = step(variables, tokens[rows, lengths + i], memory, state)
        close(logits, full[rows, lengths + i])
    assert all((cache.length == lengths + 4).all() for cache in state)


def test_beams_keep_the_state_of_the_beam_that_they_continue(model, variables, prefill, step):
    tokens = np.pad([[3, 4, 5], [6, 7, 8], [9, 3, 3]], ((0, 0), (0, 4)))
    _, memory, state = prefill(variables, tokens, np.array([3, 3, 3]))
    state = tuple(cache.reorder(np.zeros((3, 2), int)) for cache in state)
    _, state = step(variables, np.array([1, 2] * 3), memory, state)
    state = tuple(cache.reorder(np.array([[1, 1], [1, 0], [0, 0]])) for cache in state)
    assert all(cache.num_beams == 2 for cache in state)
    logits, _ = step(variables, np.array([9, 10] * 3), memory, state)
    texts = np.zeros((6, 12), int)
    texts[:, :3] = np.repeat(tokens[:, :3], 2, axis=0)
    texts[:, 3:5] = [[2, 9], [2, 10], [2, 9], [1, 10], [1, 9], [1, 10]]
    close(logits, run(model.apply, variables, texts)[:, 4])


def test_bfloat16_products_are_near_those_in_float32(model, variables):
    tokens = np.random.default_rng(0).integers(1, 11, size=(3, 12))
    rounded = DecoderOnly(hybrid_config(dtype="bfloat16"))
    found = run(rounded.apply, variables, tokens)
    expected = run(model.apply, variables, tokens)
    assert 0 < np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


def test_layers_that_cannot_be_are_refused():
    config = layer_config(options=(GatedDeltaOptions(key_heads=3, value_heads=4),))
    unused = hybrid_config(layers=None)
    check_layers(hybrid_config(), 2, causal=True)
    init_cache = GatedDeltaNet.init_cache
    refused = {
        "key_heads 3 does not divide value_heads 4": partial(init_cache, config, 1, 1),
        "positions 'rotary' are applied by no layer": partial(check_layers, unused, 2, True),
        "'gated_delta' sees only earlier tokens": partial(check_layers, layer_config(), 1, False),
    }
    assert_refused(refused)
