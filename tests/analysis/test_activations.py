# SPDX-License-Identifier: Apache-2.0
"""Collected activations are those that the model uses."""

import jax
import numpy as np
import pytest

from tests.analysis.drawn import STACKS, TOKENS, draw, reading_of
from transformer_jax.analysis.activations import attention, collect
from transformer_jax.errors import UserError
from transformer_jax.nn import fused_attention
from transformer_jax.nn.hooks import intercept_activations

SHARED = {"num_key_value_heads": 1, "attention_window": 2, "positions": "rotary"}


@pytest.fixture(scope="module", params=[*STACKS, "window and shared heads"])
def drawn(request, random_params):
    if request.param in STACKS:
        return draw(random_params, request.param)
    return draw(random_params, "decoder_only", **SHARED)


def test_weights_make_the_heads_and_the_heads_the_output(drawn):
    found = collect(drawn.model, drawn.params, drawn.reading, ["**"])
    attentions = [path.removesuffix(".weights") for path in found if path.endswith(".weights")]
    assert len(attentions) == (6 if len(drawn.reading.tokens) == 2 else 2)
    for path in attentions:
        weights, values = found[f"{path}.weights"], found[f"{path}.values"]
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
        values = np.repeat(values, len(weights) // len(values), axis=0)
        heads = np.einsum("hts,hsv->htv", weights, values)
        np.testing.assert_allclose(found[f"{path}.heads"], heads, atol=1e-5)
        of_output = drawn.params
        for name in (*path.split("."), "output"):
            of_output = of_output[name]
        output = np.einsum("htv,hvd->td", heads, of_output["kernel"]) + of_output.get("bias", 0)
        np.testing.assert_allclose(found[path], output, rtol=1e-4, atol=1e-5)


def test_windowed_attention_gives_whole_rows(random_params):
    """Without being looked at, such rows are computed in blocks."""
    drawn = draw(random_params, "decoder_only", **SHARED)
    weights = attention(drawn.model, drawn.params, drawn.reading).weights("decoder")
    distance = np.arange(4)[:, None] - np.arange(4)
    assert weights.shape == (2, 2, 4, 4)
    np.testing.assert_array_equal(weights != 0, np.broadcast_to(distance // 2 == 0, (2, 2, 4, 4)))


def test_a_sentence_in_a_packed_row_attends_as_alone(random_params):
    drawn = draw(random_params, "encoder_decoder")
    other = {"encoder": [3, 2], "decoder": [1, 6, 6]}
    row = []
    for stack in ("encoder", "decoder"):
        first, second = other[stack], TOKENS[stack]
        row.append([*first, *second])
        row.append([*range(len(first)), *range(len(second))])
        row.append([1] * len(first) + [2] * len(second))
    found = {}

    def keep(place, x):
        found[place.path] = np.asarray(x)
        return x

    with intercept_activations(keep, lambda path: path.endswith(".weights")):
        drawn.model.apply({"params": drawn.params}, *(np.array([each]) for each in row))
    alone = attention(drawn.model, drawn.params, drawn.reading)
    for path, weights in found.items():
        rows, columns = alone.values[path].shape[1:]
        own = weights[0, :, -rows:, -columns:]
        np.testing.assert_allclose(own, alone.values[path], atol=1e-6)
        np.testing.assert_allclose(own.sum(axis=-1), 1, rtol=1e-6)  # nothing goes elsewhere


def test_asking_for_weights_disables_fused_attention(random_params, monkeypatch):
    drawn, asked = draw(random_params, "decoder_only"), []
    choose = fused_attention.choose_kernel

    def noted(name, inputs, wanted):
        asked.append(wanted.weights)
        return choose(name, inputs, wanted)

    monkeypatch.setattr(fused_attention, "choose_kernel", noted)
    for pattern, expected in (("**.heads", False), ("**.weights", True)):
        asked.clear()
        collect(drawn.model, drawn.params, drawn.reading, [pattern])
        assert asked == [expected] * 2


def test_the_stream_is_the_sum_of_the_sublayers(random_params):
    drawn = draw(random_params, "decoder_only", norm_placement="pre")
    found = collect(drawn.model, drawn.params, drawn.reading, ["**"])
    stream = found["decoder.input"]
    for i in range(2):
        layer = f"decoder.layer_{i}"
        stream = stream + found[f"{layer}.self_attention"] + found[f"{layer}.feed_forward"]
        np.testing.assert_allclose(found[layer], stream, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["logits"], drawn.logits(), atol=1e-6)


def test_queries_keys_and_values_are_collected_on_request(random_params):
    drawn = draw(random_params, "encoder_decoder")
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


def test_padding_is_removed(random_params):
    """Rows are filled up to 16 tokens; a longer one gives the same."""
    drawn = draw(random_params, "encoder_decoder")
    found = collect(drawn.model, drawn.params, drawn.reading, ["**.weights"])
    exact = reading_of("encoder_decoder")
    inputs = [x[:, :5] for x in exact.inputs[:3]] + [x[:, :4] for x in exact.inputs[3:]]
    again = collect(
        drawn.model,
        drawn.params,
        exact.__class__(exact.texts, exact.tokens, exact.pieces, tuple(inputs)),
        ["**.weights"],
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, again)
