# SPDX-License-Identifier: Apache-2.0
"""Classification heads on pre-trained bodies: tokens that they read, and parameter paths."""

import dataclasses

import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import small_config
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly

CONFIG = small_config(start_id=9)
TOKENS = np.array([[2, 4, 5, 3, 2, 8, 3, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 2, 0]])
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 0]])
ROW = (TOKENS, POSITIONS, SEGMENTS)
HEADS = ("pooler", "classifier")
TEXTS = np.array([[2, 1, 0]])  # in any order; 0 is a slot without a text


def without_heads(variables):
    params = variables["params"]
    return {"params": {name: part for name, part in params.items() if name not in HEADS}}


def text_logits(params, features):
    pooled = np.tanh(features @ params["pooler"]["kernel"] + params["pooler"]["bias"])
    return pooled @ params["classifier"]["kernel"] + params["classifier"]["bias"]


@pytest.mark.parametrize(
    "body, places",
    [(EncoderOnly(CONFIG), [4, 0]), (DecoderOnly(CONFIG), [6, 3])],
    ids=["an encoder's first", "a decoder's last"],
)
def test_a_text_s_class_is_read_at_one_token(random_params, body, places):
    model = TextClassifier(body, num_classes=3)
    variables = random_params(model, *ROW, TEXTS)
    logits = apply(model, variables, *ROW, TEXTS)
    assert logits.shape == (1, 3, 3)
    features = np.asarray(apply(body, without_heads(variables), *ROW, method="features"))[0]
    expected = text_logits(variables["params"], features[places])
    np.testing.assert_allclose(logits[0, :2], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [TextClassifier, TokenClassifier])
def test_the_body_s_parameters_are_named_as_without_a_head(random_params, head):
    body = EncoderOnly(dataclasses.replace(CONFIG, num_token_types=2))
    alone = random_params(body, *ROW, POSITIONS)["params"]
    arguments = (*ROW, TEXTS) if head is TextClassifier else ROW
    with_head = random_params(head(body, 3), *arguments)["params"]
    assert set(alone) - set(with_head) == {"prediction_head"}
    assert set(with_head) - set(alone) <= set(HEADS)
