# SPDX-License-Identifier: Apache-2.0
"""Collected activations are those that the model uses."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.lab.analysis.drawn import STACKS, TOKENS, draw
from transformer_jax.errors import UserError
from transformer_jax.lab.analysis.activations import LOGITS, attention, collect
from transformer_jax.nn import fused_attention

SHARED = {"num_key_value_heads": 1, "attention_window": 2, "positions": "rotary"}
SHARED |= {"norm_placement": "pre"}
VARIANTS = {name: (name, {}) for name in STACKS}
VARIANTS["window and shared heads"] = "decoder_only", SHARED


@pytest.fixture(scope="module")
def collected(random_params):
    """`collected(name)`: a drawn model of `VARIANTS`, and all its activations."""

    @functools.cache
    def collect_all(name):
        architecture, changes = VARIANTS[name]
        drawn = draw(random_params, architecture, **changes)
        return drawn, collect(drawn.model, drawn.params, drawn.reading, ["**"])

    return collect_all


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_make_the_heads_and_the_heads_the_output(collected, name):
    drawn, found = collected(name)
    attentions = [path.removesuffix(".weights") for path in found if path.endswith(".weights")]
    assert len(attentions) == (6 if len(drawn.reading.tokens) == 2 else 2)
    for path in attentions:
        weights, values = found[f"{path}.weights"], found[f"{path}.values"]
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
        values = np.repeat(values, len(weights) // len(values), axis=0)
        heads = np.einsum("hts,hsv->htv", weights, values)
        np.testing.assert_allclose(found[f"{path}.heads"], heads, atol=1e-5)
        of_output = drawn.params
        for part in (*path.split("."), "output"):
            of_output = of_output[part]
        output = np.einsum("htv,hvd->td", heads, of_output["kernel"]) + of_output.get("bias", 0)
        np.testing.assert_allclose(found[path], output, rtol=1e-4, atol=1e-5)


def test_windowed_attention_gives_whole_rows(collected):
    """Without being looked at, such rows are computed in blocks."""
    _, found = collected("window and shared heads")
    distance = np.arange(4)[:, None] - np.arange(4)
    for layer in range(2):
        weights = found[f"decoder.layer_{layer}.self_attention.weights"]
        np.testing.assert_array_equal(weights != 0, np.broadcast_to(distance // 2 == 0, (2, 4, 4)))


def test_a_sentence_in_a_packed_row_attends_as_alone(collected):
    drawn, alone = collected("encoder_decoder")
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


def test_asking_for_weights_disables_fused_attention(random_params, monkeypatch):
    drawn, asked = draw(random_params, "decoder_only", num_layers=1), []
    choose = fused_attention.choose_kernel

    def noted(name, inputs, wanted):
        asked.append(wanted.weights)
        return choose(name, inputs, wanted)

    monkeypatch.setattr(fused_attention, "choose_kernel", noted)
    for pattern in ("**.heads", "**.weights"):
        collect(drawn.model, drawn.params, drawn.reading, [pattern])
    assert asked == [False, True]


def test_the_stream_is_the_sum_of_the_sublayers(collected):
    drawn, found = collected("window and shared heads")
    stream = found["decoder.input"]
    for i in range(2):
        layer = f"decoder.layer_{i}"
        stream = stream + found[f"{layer}.self_attention"] + found[f"{layer}.feed_forward"]
        np.testing.assert_allclose(found[layer], stream, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[LOGITS], drawn.logits(), atol=1e-5)


def test_queries_keys_and_values_are_collected_on_request(collected):
    drawn, _ = collected("encoder_decoder")
    found = attention(drawn.model, drawn.params, drawn.reading, ("queries", "keys", "stream"))
    assert found.kinds == ["encoder", "decoder", "cross"]
    shapes = {kind: found.weights(kind).shape for kind in found.kinds}
    assert shapes == {"encoder": (2, 2, 5, 5), "decoder": (2, 2, 4, 4), "cross": (2, 2, 4, 5)}
    assert found.of("cross", "queries").shape == (2, 2, 4, 8)
    assert found.of("cross", "keys").shape == (2, 2, 5, 8)
    assert found.values["encoder.layer_1"].shape == (5, 16)
    with pytest.raises(KeyError, match="no heads of cross"):
        found.of("cross", "heads")
    with pytest.raises(UserError, match="also has 'query'"):
        attention(drawn.model, drawn.params, drawn.reading, ("query",))


def test_padding_is_removed(collected):
    """Rows are filled up to 16 tokens; a longer one gives the same."""
    drawn, found = collected("encoder_decoder")
    inputs = [x[:, :5] for x in drawn.reading.inputs[:3]]
    inputs += [x[:, :4] for x in drawn.reading.inputs[3:]]
    exact = dataclasses.replace(drawn.reading, inputs=tuple(inputs))
    again = collect(drawn.model, drawn.params, exact, ["**.weights"])
    for path, weights in again.items():
        np.testing.assert_allclose(weights, found[path], atol=1e-6)
