# SPDX-License-Identifier: Apache-2.0
"""GPT and Gemma equal their formulas, GPT its published size; for cached and packed results see
`test_parts`."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.formulas import gelu, stack
from tests.models.texts import PADDED, TOGETHER, small_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig

GPT2 = TransformerConfig(
    **{"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12, "max_length": 1024},
    **{"architecture": "decoder_only", "positions": "learned", "attention_bias": "all"},
    **{"norm_placement": "pre", "activation": "gelu", "initialization": "gpt2"},
    **{"scale_embeddings": False, "vocab_size": 50257, "dtype": "float32"},
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


def test_logits_equal_the_formula(variables, logits):
    params = variables["params"]
    for row, text in zip(logits[1:], TEXTS, strict=True):
        table = params["embedding"]["table"]
        x = table[np.array(text)] + params["input"]["positions"]["table"][: len(text)]
        expected = stack("pre", params["decoder"], x, causal=True, activation=gelu) @ table.T
        np.testing.assert_allclose(row[: len(text)], expected, rtol=2e-4, atol=2e-4)


GEMMA = small_config(
    depth=3,
    **{"num_key_value_heads": 2, "key_size": 6, "value_size": 6},
    **{"positions": "rotary", "rope_theta": 100.0, "rope_layout": "halves"},
    **{"attention_window": 2, "layers": "default | attention_window=none", "attention_scale": 0.5},
    **{"logit_cap": 5.0, "final_logit_cap": 3.0},
    **{"norm": "rms_plus_one", "norm_epsilon": 1e-3, "norm_placement": "sandwich"},
    **{"gated_feed_forward": True, "feed_forward_bias": False, "activation": "gelu"},
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


def test_gemma_2_equals_its_formula(random_params):
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
            hidden = gelu(y @ network["gate"]["kernel"]) * (y @ network["inner"]["kernel"])
            x = x + gemma_norm(norms["norm_after"], hidden @ network["outer"]["kernel"])
        expected = gemma_norm(params["decoder"]["final_norm"], x) @ table.T
        expected = 3 * np.tanh(expected / 3)
        np.testing.assert_allclose(row[: len(text)], expected, rtol=2e-4, atol=2e-4)


def test_dropout_acts_on_embeddings_and_residuals(variables, logits):
    rngs = {"dropout": jax.random.key(0)}
    for rate in ("dropout_rate", "embedding_dropout_rate"):
        dropping = DecoderOnly(dataclasses.replace(SMALL, **{"dropout_rate": 0.0, rate: 0.5}))
        dropped = apply(dropping, variables, *TOGETHER, deterministic=False, rngs=rngs)
        assert not np.allclose(dropped, logits)
