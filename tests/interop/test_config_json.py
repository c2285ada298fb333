# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json: each is read, has no effect, or is refused or warned about by name."""

import dataclasses
from pathlib import Path

import pytest

from tests.interop.published import FIXTURES
from transformer_jax.errors import UserError
from transformer_jax.interop.config_json import (
    NO_EFFECT,
    class_names,
    default_ids,
    find_family,
    read_json,
    special_ids,
    unread_keys,
    vocabulary_rows,
)
from transformer_jax.interop.families import FAMILIES
from transformer_jax.interop.families.base import ReadKeys, with_defaults
from transformer_jax.interop.family_match import default_model
from transformer_jax.interop.generation_config import read_generation

FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA_2 = "default | attention_window=none"


def options(name, **changes):
    keys = read_json(FIXTURES / name / "config.json") | changes
    keys = {key: value for key, value in keys.items() if value is not ...}
    return find_family(keys)[0].options(keys)


@pytest.mark.parametrize(
    "name, keys, window, layers",
    [
        ("qwen2", {}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": ...}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4, None),
        ("qwen3", {"use_sliding_window": True, "layer_types": [SLIDING, FULL]}, 4, GEMMA_2),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 1},
            4,
            "attention_window=none | default",
        ),
        ("mistral", {}, 4, None),
        ("mistral", {"sliding_window": None}, None, None),
        ("gemma2", {}, 4, GEMMA_2),
        ("gemma2", {"layer_types": None}, 4, GEMMA_2),
        ("gemma2", {"layer_types": [FULL, FULL, FULL]}, None, None),
        ("gemma2", {"layer_types": [SLIDING, SLIDING, FULL]}, 4, f"2 x {GEMMA_2}"),
    ],
)
def test_layers_with_a_window(name, keys, window, layers):
    given = {"sliding_window": 4, "layer_types": ...} | keys
    found = options(name, **given)
    assert found.get("attention_window") == window
    assert found.get("layers") == layers


def test_missing_special_tokens_are_left_out():
    keys = {"pad_token_id": -1, "bos_token_id": None, "eos_token_id": [7, 9]}
    assert special_ids(keys | {"decoder_start_token_id": 3}) == {"eos": 7, "start": 3}


DEFAULTS = read_json(FIXTURES / "class_defaults" / "defaults.json")["config"]
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}
WINDOW |= {"layer_types": None}
OTHER_VALUES = {
    "rope_parameters": {"rope_theta": 5.0, "rope_type": "default"},
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation_function": "relu",
    "activation": "relu",
    "feed_forward_proj": "gated-silu",
    "model_type": "vit",
    "architectures": ["BertLMHeadModel"],
}


def defaults_of(model_type):
    """Keys of a config.json of the class's defaults, with attention windows where it has them."""
    keys = {name: value for name, value in DEFAULTS[model_type].items() if value is not None}
    return keys | {key: value for key, value in WINDOW.items() if key in DEFAULTS[model_type]}


def outcome(given):
    """Config that an import derives from a config.json without its tensors, or the error."""
    keys = ReadKeys({name: value for name, value in given.items() if value is not None})
    try:
        family, class_name = find_family(keys)
        rows = vocabulary_rows(keys)
        ids = special_ids(with_defaults(keys, default_ids(family, rows["text"])))
        options = family.options(keys)
        labels = class_names(with_defaults(keys, family.defaults))
    except UserError as error:
        return str(error)
    generation = read_generation(Path("none"), keys, family.architecture)
    model = (options, family.tasks[class_name], rows, ids, labels)
    generation = dataclasses.replace(
        generation, start=None, ends=()
    )  # `ids` has them with the defaults
    return *model, generation, unread_keys(family, keys)


def other_value(key, value):
    if key in OTHER_VALUES:
        return OTHER_VALUES[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    if key.endswith("_token_id"):
        return 3
    kinds = ["full_attention"] * 26
    return kinds if key == "layer_types" else "other"


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_no_key_is_dropped_in_silence(model_type):
    keys, family = defaults_of(model_type), FAMILIES[model_type]
    before = outcome(keys)
    assert not isinstance(before, str), before
    for key, value in DEFAULTS[model_type].items():
        changed = keys | {key: other_value(key, keys.get(key, value))}
        is_known = key in (*NO_EFFECT, *family.no_effect)
        assert is_known or outcome(changed) != before, key


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_missing_keys_have_the_default_of_the_class(model_type):
    keys = defaults_of(model_type)
    before = outcome(keys)
    for key in keys:
        found = outcome({name: value for name, value in keys.items() if name != key})
        if key in WINDOW:
            continue
        assert found == before or f"config.json has no {key}" in found or "model_type" in found, key


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_an_export_is_read(model_type):
    keys = ReadKeys(defaults_of(model_type))
    family, _ = find_family(keys)
    exported = ReadKeys(family.keys(default_model(family.options(keys))))
    find_family(exported)
    family.options(exported)
    assert unread_keys(family, exported) == []


def test_llama_has_no_window_and_rotates_whole_heads():
    before = outcome(defaults_of("llama"))
    found = outcome(defaults_of("llama") | {"partial_rotary_factor": 0.5, "sliding_window": 4})
    assert found[:-1] == before[:-1]
    assert found[-1] == ["config.json: sliding_window is 4; it is not imported"]
    scaling = {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}
    assert "partial_rotary_factor is 0.5" in outcome(
        defaults_of("llama") | {"rope_scaling": scaling}
    )


@pytest.mark.parametrize("name", ["llama", "llama3", "llama_linear", "mistral"])
def test_rotary_positions_are_the_same_in_either_spelling(name):
    """transformers 4 has `rope_theta` and `rope_scaling`, 5 `rope_parameters`."""
    keys = read_json(FIXTURES / name / "config.json")
    parameters = keys.get("rope_parameters") or {
        "rope_theta": keys["rope_theta"],
        **(keys["rope_scaling"] or {"rope_type": "default"}),
    }
    theta = parameters["rope_theta"]
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    old = {"rope_parameters": ..., "rope_theta": theta, "rope_scaling": scaling}
    new = {"rope_parameters": parameters, "rope_theta": ..., "rope_scaling": ...}
    assert options(name, **old) == options(name, **new) == options(name)
    assert options(name)["rope_theta"] == theta


def test_labels_that_no_one_named_have_the_names_of_the_class():
    assert class_names({}) == ["LABEL_0", "LABEL_1"]
    assert class_names({"num_labels": 3}) == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    "keys, tie, is_scaled",
    [
        ({"tie_word_embeddings": True}, "all", True),
        ({"tie_word_embeddings": False}, "inputs", False),  # as transformers 4 writes v1.1
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, "inputs", False),  # 5
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, "inputs", True),
    ],
)
def test_projections_of_t5(keys, tie, is_scaled):
    found = options("t5", **{"scale_decoder_outputs": ...} | keys)
    assert (found["tie_embeddings"], found["scale_logits"]) == (tie, is_scaled)
