# SPDX-License-Identifier: Apache-2.0
"""Patches equal zeroed parameters and removed layers; searches equal full passes."""

import copy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.analysis.drawn import draw
from tests.refusals import assert_refused
from transformer_jax.lab.analysis.activations import collect
from transformer_jax.models import apply_method
from transformer_jax.models.patches import patched_model


def patched_logits(drawn, changes):
    return drawn.logits(patched_model(drawn.model, changes, drawn.hook_points))


def at(params, path):
    for name in path.split("."):
        params = params[name]
    return params


@pytest.fixture(scope="module")
def translator(random_params):
    changes = dict(num_encoder_layers=1, norm_placement="pre", attention_bias="all")
    return draw(random_params, "encoder_decoder", **changes)


def test_a_head_switched_off_has_zeros_in_the_output_matrix(translator):
    attention = "decoder.layer_1.cross_attention"
    zeroed = copy.deepcopy(translator.params)
    at(zeroed, attention)["output"]["kernel"][1] = 0
    expected = translator.logits(params=zeroed)
    assert np.abs(expected - translator.logits()).max() > 1e-3
    found = patched_logits(translator, {f"{attention}.heads[1]": 0})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_sublayer_switched_off_adds_nothing(translator):
    zeroed = copy.deepcopy(translator.params)
    for i in range(2):
        output = at(zeroed, f"decoder.layer_{i}.feed_forward.outer")
        output["kernel"][:], output["bias"][:] = 0, 0
    found = patched_logits(translator, {"decoder.layer_*.feed_forward": 0})
    np.testing.assert_allclose(found, translator.logits(params=zeroed), rtol=1e-5, atol=1e-5)


def test_a_layer_switched_off_equals_a_removed_layer(random_params):
    deep = draw(random_params, "decoder_only", norm_placement="post")
    flat = draw(random_params, "decoder_only", norm_placement="post", num_layers=1)
    params = copy.deepcopy(deep.params)
    params["decoder"]["layer_0"] = params["decoder"].pop("layer_1")
    found = patched_logits(deep, {"decoder.layer_0": 0})
    np.testing.assert_allclose(found, flat.logits(params=params), rtol=1e-5, atol=1e-5)


def test_in_a_merged_block_the_keys_of_the_source_follow_those_of_the_target(random_params):
    """A key without weights is one whose value is 0."""
    drawn = draw(random_params, "encoder_decoder", block="merged", positions="rotary")
    attention = "decoder.layer_1.self_attention"
    target = drawn.reading.inputs[3].shape[1]
    for key in (0, target + 1):
        found = patched_logits(drawn, {f"{attention}.weights[:, :, {key}]": 0})
        expected = patched_logits(drawn, {f"{attention}.values[:, {key}]": 0})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert np.abs(found - drawn.logits()).max() > 1e-4, key


def test_without_patches_logits_are_exactly_the_models(translator):
    np.testing.assert_array_equal(patched_logits(translator, {}), translator.logits())


def test_each_patch_adds_to_those_before_it(translator):
    head, layer = "encoder.layer_0.self_attention.heads[0]", "decoder.layer_1"
    together = patched_logits(translator, {head: 0, layer: 0.5})
    one = patched_model(translator.model, {head: 0}, translator.hook_points)
    then = patched_model(one, {layer: 0.5}, translator.hook_points)
    np.testing.assert_array_equal(translator.logits(then), together)


def test_activations_are_replaced_by_those_of_another_input(translator):
    """The decoder sees the source only through keys and values; with those of another source,
    its logits are those of that source."""
    other = copy.deepcopy(translator)
    other.reading.inputs[0][:] = other.reading.inputs[0][:, ::-1]
    other.reading.inputs[1][:], other.reading.inputs[2][:] = translator.reading.inputs[1:3]
    found = collect(other.model, other.params, other.reading, ["**.keys", "**.values", "decoder.*"])
    given = {path: x for path, x in found.items() if "cross_attention" in path}
    expected = other.logits()
    assert np.abs(expected - translator.logits()).max() > 1e-3
    np.testing.assert_allclose(patched_logits(translator, given), expected, rtol=1e-4, atol=1e-5)
    last = {"decoder.layer_1[2]": found["decoder.layer_1"][2]}
    rows = patched_logits(translator, last)
    np.testing.assert_allclose(rows[2], expected[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(rows[[0, 1, 3]], translator.logits()[[0, 1, 3]])


def test_weights_are_replaced_one_by_one(translator):
    path = "decoder.layer_0.cross_attention"
    uniform = np.full((2, 5), 0.2)
    changes = {f"{path}.weights[1, 1:3]": uniform, f"{path}.weights[0, 3, 2]": 0}
    model = patched_model(translator.model, changes, translator.hook_points)
    found, plain = (
        collect(one, translator.params, translator.reading, [f"{path}.*"])
        for one in (model, translator.model)
    )
    expected = plain[f"{path}.weights"].copy()
    expected[1, 1:3] = 0.2
    expected[0, 3, 2] = 0
    heads = np.einsum("hts,hsv->htv", expected, found[f"{path}.values"])
    np.testing.assert_allclose(found[f"{path}.heads"], heads, rtol=1e-4, atol=1e-5)


def test_a_function_changes_a_value(translator):
    one = patched_logits(translator, {"encoder.*[:, 3]": jnp.zeros_like})
    half = {"encoder.*[:, 3]": 0.5}
    np.testing.assert_allclose(one, patched_logits(translator, half | {"encoder.*[:, 3:4]": 0}))


SEARCHED = {
    "decoder.layer_0.self_attention.weights[0, :, 1]": 0.3,
    "decoder.layer_1.self_attention.heads[1, 2]": 0,
    "decoder.layer_1.cross_attention.weights[:, 2:, 3]": 0,
    "decoder.layer_0.self_attention.keys[0, 1]": 2.0,
    "decoder.layer_0[3, 4]": 0,
    "decoder.layer_0.feed_forward.hidden[1, :7]": 0,
    "encoder.layer_0.self_attention.queries[1, 0]": -1.0,
}


def test_a_search_with_a_cache_has_the_patches_of_a_whole_pass(translator):
    """Patched positions are those of the tokens, wherever the cache stores them."""
    model = patched_model(translator.model, SEARCHED, translator.hook_points)
    whole, params = translator.logits(model), translator.params
    assert np.abs(whole - translator.logits()).max() > 1e-3
    source, target = (np.array([translator.reading.tokens[one]]) for one in ("encoder", "decoder"))
    sides = (source, np.array([5]), target[:, :1], np.array([1]))
    logits, memory, state = jax.jit(lambda *x: apply_method(model, params, "prefill", *x, 6))(
        *sides
    )
    step = jax.jit(lambda *x: apply_method(model, params, "decode_step", *x))
    found = [logits[0]]
    for token in target[0, 1:]:
        logits, state = step(np.array([token]), memory, state)
        found.append(logits[0])
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)


def test_positions_are_those_in_each_sentence_of_a_packed_row(translator):
    model = patched_model(translator.model, SEARCHED, translator.hook_points)
    row = []
    for stack in ("encoder", "decoder"):
        tokens = translator.reading.tokens[stack]
        places = [*range(len(tokens))]
        row += [[*tokens, *tokens], [*places, *places], [1] * len(tokens) + [2] * len(tokens)]
    inputs = [np.array([each]) for each in row]
    packed = jax.jit(lambda p: model.apply({"params": p}, *inputs))(translator.params)[0]
    alone = translator.logits(model)
    np.testing.assert_allclose(packed, np.concatenate([alone, alone]), rtol=1e-4, atol=1e-5)


def test_hook_points_have_names_and_axes(translator):
    points = translator.hook_points
    weights = points["decoder.layer_1.cross_attention.weights"]
    assert weights == {"head": 2, "query": None, "key": None}
    assert points["encoder.layer_0.feed_forward.hidden"] == {"position": None, "neuron": 24}
    assert points["decoder.input"] == {"position": None, "feature": 16}
    assert "source_positions" in points and "decoder.layer_2" not in points


def test_impossible_patches_are_refused(translator):
    heads = "encoder.layer_0.self_attention.heads"
    changes = {
        "did you mean decoder.layer_1.cross_att": {"decoder.layer_1.crossattention.heads[0]": 0},
        f"index 2 is too large; axis head of {heads} has size 2": {f"{heads}[2]": 0},
        f"index 4 is too large; axis head of {heads} has size 2": {f"{heads}[0:5]": 0},
        f"index 3 is too large; axis head of {heads} has size 2": {f"{heads}[3:]": 0},
        "'encoder.layer_0[-1]': write HOOK_POINT or HOOK_POINT[INDEX": {"encoder.layer_0[-1]": 0},
        "'encoder.layer_0[]': write HOOK_POINT or HOOK_POINT[INDEX": {"encoder.layer_0[]": 0},
        "'encoder.layer_0[0': write HOOK_POINT or HOOK_POINT[INDEX": {"encoder.layer_0[0": 0},
        "has only the axes position, feature": {"encoder.layer_0[0, 1, 2]": 0},
        "encoder.layer_0 takes [position, feature 16]": {"encoder.layer_0": np.zeros(16)},
        "(15,) does not fit; encoder.layer_0 takes [feature 16]": {
            "encoder.layer_0[1]": np.zeros(15)
        },
    }
    patch = partial(patched_model, translator.model, points=translator.hook_points)
    assert_refused({words: partial(patch, change) for words, change in changes.items()})
