"""Keys of config.json and generation_config.json that older files write differently."""

import pytest

from tests.interop.published import FIXTURES
from transformer_jax.interop.config_json import decode_fields, find_family, read_json, special_ids

FULL, SLIDING = "full_attention", "sliding_attention"


def options(name, **changes):
    keys = read_json(FIXTURES / name / "config.json") | changes
    keys = {key: value for key, value in keys.items() if value is not ...}
    return find_family(keys)[0].options(keys)


@pytest.mark.parametrize(
    "name, keys, window, every",
    [
        ("qwen2", {}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": ...}, None, None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, 4, None),
        ("qwen3", {"use_sliding_window": True, "layer_types": [SLIDING, FULL]}, 4, 2),
        ("mistral", {}, 4, None),
        ("mistral", {"sliding_window": None}, None, None),
        ("gemma2", {}, 4, 2),
        ("gemma2", {"layer_types": None}, 4, 2),
        ("gemma2", {"layer_types": [FULL, FULL, FULL]}, None, None),
        ("gemma2", {"layer_types": [SLIDING, SLIDING, FULL]}, 4, 3),
    ],
)
def test_layers_with_a_window(name, keys, window, every):
    given = {"sliding_window": 4, "layer_types": ...} | keys
    found = options(name, **given)
    assert found.get("attention_window") == window
    assert found.get("full_attention_every") == every


def test_missing_special_tokens_are_left_out():
    keys = {"pad_token_id": -1, "bos_token_id": None, "eos_token_id": [7, 9]}
    assert special_ids(keys | {"decoder_start_token_id": 3}) == {"eos": 7, "start": 3}


def test_search_settings_of_generation_config(tmp_path):
    assert decode_fields(tmp_path, has_encoder=False) == {}
    (tmp_path / "generation_config.json").write_text('{"num_beams": null, "length_penalty": 0.8}')
    found = decode_fields(tmp_path, has_encoder=True)
    assert (found["decode.beam_size"], found["decode.alpha"]) == (1, 0.8)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_k": 0, "top_p": 1}')
    assert decode_fields(tmp_path, has_encoder=False) == {
        "decode.temperature": 1.0,
        "decode.top_p": 1,
    }
