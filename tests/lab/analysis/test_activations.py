# SPDX-License-Identifier: Apache-2.0
"""Activations of packed rows and on request. (Their values: test_walk.py, by formulas.)"""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from tests.lab.analysis.drawn import TOKENS, draw
from transformer_jax.errors import UserError
from transformer_jax.lab.analysis.activations import LOGITS, attention, collect
from transformer_jax.lab.analysis.attention_page import attention_page
from transformer_jax.nn import fused_attention


@pytest.fixture(scope="module")
def drawn(random_params):
    return draw(random_params, "encoder_decoder")


def test_a_sentence_in_a_packed_row_attends_as_alone(drawn):
    alone = collect(drawn.model, drawn.params, drawn.reading, ["**.weights"])
    other = {"encoder": [3, 2], "decoder": [1, 6, 6]}
    tokens, inputs = {}, []
    for stack in ("encoder", "decoder"):
        first, second = other[stack], TOKENS[stack]
        tokens[stack] = [*first, *second]
        places = [*range(len(first)), *range(len(second))]
        segments = [1] * len(first) + [2] * len(second)
        inputs += [np.array([row]) for row in (tokens[stack], places, segments)]
    row = dataclasses.replace(drawn.reading, tokens=tokens, inputs=tuple(inputs))
    for path, weights in collect(drawn.model, drawn.params, row, ["**.weights"]).items():
        if path == LOGITS:
            continue
        queries, keys = alone[path].shape[1:]
        own = weights[:, -queries:, -keys:]
        np.testing.assert_allclose(own, alone[path], atol=1e-6)
        np.testing.assert_allclose(own.sum(axis=-1), 1, rtol=1e-6)  # nothing goes elsewhere


def test_a_merged_block_attends_to_its_past_and_to_the_source(random_params):
    drawn = draw(random_params, "encoder_decoder", block="merged", positions="rotary")
    found = attention(drawn, "", also=("keys",))
    assert found.kinds == ["encoder", "decoder"]
    queries, keys = (found.tokens[name] for name in found.stacks("decoder"))
    assert keys == [*found.tokens["decoder"], *found.tokens["encoder"]]
    weights = found.weights("decoder")
    assert weights.shape == (2, 2, len(queries), len(keys))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    assert weights[..., len(queries) :].min() > 0  # every token of the source is seen
    assert found.of("decoder", "keys").shape == (2, 2, len(keys), 8)
    assert {*found.tokens} == {"encoder", "decoder", found.stacks("decoder")[1]}
    assert [*found.tokens][-1] == "decoder"  # the page predicts at the last stack
    assert f'"keysOf":"{found.stacks("decoder")[1]}"' in attention_page(found, "")


def test_asking_for_weights_disables_fused_attention(random_params, monkeypatch):
    drawn = draw(random_params, "decoder_only", num_layers=1)
    choose = Mock(wraps=fused_attention.choose_kernel)
    monkeypatch.setattr(fused_attention, "choose_kernel", choose)
    for pattern in ("**.heads", "**.weights"):
        collect(drawn.model, drawn.params, drawn.reading, [pattern])
    assert [call.args[2].weights for call in choose.call_args_list] == [False, True]


def test_queries_keys_and_values_are_collected_on_request(drawn):
    found = attention(drawn, "", also=("queries", "keys", "stream"))
    assert found.kinds == ["encoder", "decoder", "cross"]
    shapes = {kind: found.weights(kind).shape for kind in found.kinds}
    assert shapes == {"encoder": (2, 2, 5, 5), "decoder": (2, 2, 4, 4), "cross": (2, 2, 4, 5)}
    assert found.of("cross", "queries").shape == (2, 2, 4, 8)
    assert found.of("cross", "keys").shape == (2, 2, 5, 8)
    assert found.values["encoder.layer_1"].shape == (5, 16)
    with pytest.raises(KeyError, match="no heads of cross"):
        found.of("cross", "heads")
    with pytest.raises(UserError, match="also has 'query'"):
        attention(drawn, "", also=("query",))
