# SPDX-License-Identifier: Apache-2.0
"""GPT equals its formulas and its published size; cached and packed results are consistent."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import PADDED, TOGETHER
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig

GPT2 = TransformerConfig(
    architecture="decoder_only",
    d_model=768,
    d_ff=3072,
    num_heads=12,
    num_layers=12,
    positions="learned",
    max_length=1024,
    attention_bias="all",
    norm_placement="pre",
    activation="gelu",
    initialization="gpt2",
    scale_embeddings=False,
    vocab_size=50257,
    dtype="float32",
)
SMALL = dataclasses.replace(
    GPT2, d_model=16, d_ff=24, num_heads=4, num_layers=2, max_length=8, vocab_size=11
)
TEXTS = [[3, 4, 5, 6, 9], [7, 8, 10]]


@pytest.fixture(scope="module")
def model():
    return DecoderOnly(SMALL)


@pytest.fixture(scope="module")
def variables(model, random_params):
    return random_params(model, *PADDED)


@pytest.fixture(scope="module")
def logits(model, variables):
    """Logits of a row with both texts, and of two rows with one each."""
    return apply(model, variables, *TOGETHER)


def test_it_has_as_many_parameters_as_gpt2():
    row = jnp.ones((1, 1), jnp.int32)
    params = jax.eval_shape(DecoderOnly(GPT2).init, jax.random.key(0), row, row, row)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 124_439_808
    untied = dataclasses.replace(GPT2, tie_embeddings="none")
    params = jax.eval_shape(DecoderOnly(untied).init, jax.random.key(0), row, row, row)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 124_439_808 + 768 * 50257


def test_initial_parameters_have_gpt2s_standard_deviations():
    wide = dataclasses.replace(SMALL, d_model=128, d_ff=128, vocab_size=200, max_length=64)

    @jax.jit
    def initialized(key):
        params = DecoderOnly(wide).init(key, *PADDED)["params"]
        layer = params["decoder"]["layer_1"]
        return [
            layer["self_attention"]["query"]["kernel"],
            layer["feed_forward"]["inner"]["kernel"],
            params["embedding"]["table"],
            params["input"]["positions"]["table"],
            layer["self_attention"]["output"]["kernel"],
            layer["feed_forward"]["outer"]["kernel"],
        ]

    spread = [np.std(np.asarray(x)) for x in initialized(jax.random.key(0))]
    expected = [0.02] * 4 + [0.02 / math.sqrt(2 * 2)] * 2
    np.testing.assert_allclose(spread, expected, rtol=0.05)


def test_logits_equal_the_formula(variables, logits, formulas):
    params = variables["params"]
    for row, text in zip(logits[1:], TEXTS, strict=True):
        table = params["embedding"]["table"]
        x = table[np.array(text)] + params["input"]["positions"]["table"][: len(text)]
        expected = formulas.gpt_stack(params["decoder"], x) @ table.T
        np.testing.assert_allclose(row[: len(text)], expected, rtol=2e-4, atol=2e-4)


GEMMA = TransformerConfig(
    d_model=16,
    d_ff=24,
    num_heads=4,
    num_key_value_heads=2,
    key_size=6,
    value_size=6,
    num_layers=3,
    positions="rotary",
    rope_theta=100.0,
    rope_layout="halves",
    attention_window=2,
    layers="default | attention_window=none",
    attention_scale=0.5,
    logit_cap=5.0,
    final_logit_cap=3.0,
    norm="rms_plus_one",
    norm_epsilon=1e-3,
    norm_placement="sandwich",
    gated_feed_forward=True,
    feed_forward_bias=False,
    activation="gelu",
    vocab_size=11,
    dtype="float32",
)


def gemma_norm(params, x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * (1 + params["scale"])


def gemma_attention(params, x, window):
    """Two heads of queries share one of keys; a window of keys ends with the query itself."""

    def rotated(vector, place):
        turn = np.exp(1j * place * 100.0 ** (-np.arange(3) / 3))
        numbers = (vector[:3] + 1j * vector[3:]) * turn
        return np.concatenate([numbers.real, numbers.imag])

    result = np.zeros_like(x)
    for h, t in np.ndindex(4, len(x)):
        query = rotated(x[t] @ params["query"]["kernel"][:, h], t)
        seen = range(max(0, t - window + 1), t + 1)
        keys = [rotated(x[s] @ params["key"]["kernel"][:, h // 2], s) for s in seen]
        weights = np.exp([5 * np.tanh(0.5 * query @ key / 5) for key in keys])
        values = x[list(seen)] @ params["value"]["kernel"][:, h // 2]
        result[t] += weights / weights.sum() @ values @ params["output"]["kernel"][h]
    return result


def test_gemma_2_equals_its_formula(random_params, formulas):
    """Gemma 2's report (2024), section 2: both norms, both caps, a window in every other layer."""
    model = DecoderOnly(GEMMA)
    variables = random_params(model, *PADDED)
    params, found = variables["params"], jax.jit(model.apply)(variables, *PADDED)
    table = params["embedding"]["table"]
    for row, text in zip(found, TEXTS, strict=True):
        x = math.sqrt(16) * table[np.array(text)]
        for i, window in enumerate([2, len(text), 2]):
            layer = params["decoder"][f"layer_{i}"]
            norms = layer["self_attention_residual"]
            y = gemma_norm(norms["norm_before"], x)
            y = gemma_attention(layer["self_attention"], y, window)
            x = x + gemma_norm(norms["norm_after"], y)
            norms, network = layer["feed_forward_residual"], layer["feed_forward"]
            y = gemma_norm(norms["norm_before"], x)
            hidden = formulas.gelu(y @ network["gate"]["kernel"]) * (y @ network["inner"]["kernel"])
            x = x + gemma_norm(norms["norm_after"], hidden @ network["outer"]["kernel"])
        expected = gemma_norm(params["decoder"]["final_norm"], x) @ table.T
        expected = 3 * np.tanh(expected / 3)
        np.testing.assert_allclose(row[: len(text)], expected, rtol=2e-4, atol=2e-4)


def test_texts_packed_into_a_row_do_not_see_each_other(logits):
    packed, *alone = logits
    np.testing.assert_allclose(packed[:5], alone[0][:5], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(packed[5:8], alone[1][:3], rtol=1e-4, atol=1e-4)


def test_no_token_sees_a_later_one(variables):
    table = variables["params"]["embedding"]["table"]

    def of_embeddings(table_rows):
        # Tokens differ, so that each row of the table belongs to one position.
        changed = {**variables["params"], "embedding": {"table": table_rows}}
        untied = changed | {"projection": {"table": table}}
        separate = DecoderOnly(dataclasses.replace(SMALL, tie_embeddings="none"))
        return separate.apply({"params": untied}, *(part[:1] for part in PADDED))[0].sum(axis=-1)

    sensitivity = np.abs(jax.jit(jax.jacobian(of_embeddings))(table)).sum(axis=-1)  # [T, V]
    by_place = sensitivity[:, np.array(TEXTS[0])]  # [T, T]
    assert (np.triu(by_place, 1) == 0).all()
    assert (by_place[np.tril_indices(5)] > 0).all()


def test_cached_decoding_equals_the_full_forward_pass(model, variables, logits):
    """Prompts of unequal lengths are prefilled together, then continued token by token."""
    whole = logits[1:]
    prompt, lengths = np.array([[3, 4, 5], [7, 0, 0]]), np.array([3, 1])
    found, memory, state = apply(model, variables, prompt, lengths, 8, method="prefill")
    np.testing.assert_allclose(found, whole[[0, 1], lengths - 1], rtol=1e-4, atol=1e-4)
    decode = jax.jit(functools.partial(model.apply, method="decode_step"))
    for step, tokens in enumerate([[6, 8], [9, 10]]):
        found, state = decode(variables, np.array(tokens), memory, state)
        places = lengths + step
        np.testing.assert_allclose(found, whole[[0, 1], places], rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_embeddings_and_residuals(variables, logits):
    rngs = {"dropout": jax.random.key(0)}
    for rate in ("dropout_rate", "embedding_dropout_rate"):
        dropping = DecoderOnly(dataclasses.replace(SMALL, **{"dropout_rate": 0.0, rate: 0.5}))
        dropped = apply(dropping, variables, *TOGETHER, deterministic=False, rngs=rngs)
        assert not np.allclose(dropped, logits)
