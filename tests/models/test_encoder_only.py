# SPDX-License-Identifier: Apache-2.0
"""BERT equals its formulas and its published size; packed equals padded."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models import texts
from tests.models.formulas import gelu, layer_norm, stack
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.tokenization.specials import EOS

BODY = {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12, "max_length": 512}
BERT = TransformerConfig(
    **BODY,
    **{"architecture": "encoder_only", "positions": "learned", "attention_bias": "all"},
    **{"activation": "gelu", "embedding_norm": True, "num_token_types": 2},
    **{"initialization": "bert", "scale_embeddings": False},
    **{"vocab_size": 30522, "dtype": "float32"},
)
SIZES = {"d_model": 16, "d_ff": 24, "num_heads": 4, "num_layers": 2, "max_length": 8}
SMALL = dataclasses.replace(BERT, **SIZES, vocab_size=11, separator_id=EOS)
TEXTS = [[2, 4, EOS, 6, EOS], [2, 8, EOS]]  # a pair, and a text alone
TYPES = [[0, 0, 0, 1, 1], [0, 0, 0]]
PADDED = (np.array([[2, 4, EOS, 6, EOS], [2, 8, EOS, 0, 0]]), *texts.PADDED[1:])
PACKED = (np.array([[2, 4, EOS, 6, EOS, 2, 8, EOS, 0]]), *texts.PACKED[1:])


@pytest.fixture(scope="module")
def model():
    return EncoderOnly(SMALL)


@pytest.fixture(scope="module")
def variables(model, random_params):
    return random_params(model, *PADDED, PADDED[1])


def test_it_has_as_many_parameters_as_bert_base():
    """BERT-base with its masked-token head, without its next-sentence head."""
    row = jnp.ones((1, 1), jnp.int32)
    params = jax.eval_shape(EncoderOnly(BERT).init, jax.random.key(0), row, row, row, row)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 109_514_298


def test_logits_equal_the_formula(model, variables):
    params = variables["params"]
    places = np.array([[3, 1], [1, 0]])
    found = apply(model, variables, *PADDED, places)
    table, inputs = params["embedding"]["table"], params["input"]
    for row, text, types, chosen in zip(found, TEXTS, TYPES, places, strict=True):
        x = table[np.array(text)] + inputs["positions"]["table"][: len(text)]
        x = layer_norm(inputs["norm"], x + inputs["token_types"][np.array(types)])
        x = stack("post", params["encoder"], x, activation=gelu)[chosen]
        head = params["prediction_head"]
        x = gelu(x @ head["transform"]["kernel"] + head["transform"]["bias"])
        expected = layer_norm(head["norm"], x) @ table.T + head["bias"]
        np.testing.assert_allclose(row, expected, rtol=2e-4, atol=2e-4)


def test_texts_packed_into_a_row_do_not_see_each_other(model, variables):
    alone = apply(model, variables, *PADDED, method="features")
    together = apply(model, variables, *PACKED, method="features")
    np.testing.assert_allclose(together[0, :5], alone[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(together[0, 5:8], alone[1, :3], rtol=1e-4, atol=1e-4)
