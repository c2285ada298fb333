# SPDX-License-Identifier: Apache-2.0
"""GPT equals its formula and has its published size; for cached and packed results see
`test_parts`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.formulas import gelu, stack
from tests.models.texts import PADDED, TOGETHER
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layers import count_parameters

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
    for tying, count in (("all", 124_439_808), ("none", 124_439_808 + 768 * 50257)):
        model = DecoderOnly(dataclasses.replace(GPT2, tie_embeddings=tying))
        params = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 1), jnp.int32))
        assert count_parameters(params) == count


def test_logits_equal_the_formula(variables, logits):
    params = variables["params"]
    for row, text in zip(logits[1:], TEXTS, strict=True):
        table = params["embedding"]["table"]
        x = table[np.array(text)] + params["input"]["positions"]["table"][: len(text)]
        expected = stack("pre", params["decoder"], x, causal=True, activation=gelu) @ table.T
        np.testing.assert_allclose(row[: len(text)], expected, rtol=2e-4, atol=2e-4)


def test_dropout_acts_on_embeddings(variables, logits):
    """That of sublayers is in `test_encoder_decoder`."""
    dropping = dataclasses.replace(SMALL, dropout_rate=0.0, embedding_dropout_rate=0.5)
    call = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}
    dropped = apply(DecoderOnly(dropping), variables, *TOGETHER, **call)
    assert not np.allclose(dropped, logits)


@pytest.mark.parametrize("attention_layer", ["prefix", "bidirectional"])
def test_positions_tell_later_tokens_apart_where_a_layer_sees_them(attention_layer, random_params):
    """T5 has buckets of later tokens where they are seen (Raffel et al. 2020, section 2.1)."""
    options = {"positions": "t5", "num_layers": 1, "start_id": 1, "norm_placement": "pre"}
    model = DecoderOnly(dataclasses.replace(SMALL, attention_layer=attention_layer, **options))
    rows = jnp.array([[3, 4, 5, 6, 1], [3, 6, 5, 4, 1]])  # the second and the fourth exchanged
    row = jnp.broadcast_to(jnp.arange(5), rows.shape)
    inputs = (rows, row, jnp.ones_like(rows))
    logits = apply(model, random_params(model, *inputs), *inputs)
    assert np.abs(logits[0, 0] - logits[1, 0]).max() > 1e-3
