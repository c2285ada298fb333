# SPDX-License-Identifier: Apache-2.0
"""Keys of generation: each sets a field of `decode`, has no effect, or is warned about by name."""

import json

import pytest

from tests.interop.published import FIXTURES
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.interop.families.base import ReadKeys
from transformer_jax.interop.generation_config import (
    GENERATION,
    NO_EFFECT,
    generation_keys,
    read_generation,
    search_warnings,
)

DEFAULTS = json.loads((FIXTURES / "class_defaults" / "defaults.json").read_text())["generation"]
SAMPLING = ("temperature", "top_k", "top_p")
SEQ2SEQ, DECODER = "encoder_decoder", "decoder_only"


def read(tmp_path, architecture, keys, config=()):
    if keys is not None:
        (tmp_path / GENERATION).write_text(json.dumps(keys))
    return read_generation(tmp_path, ReadKeys(dict(config)), architecture)


def other_value(key):
    default = DEFAULTS[key]
    if isinstance(default, bool) or default is None:
        return 7 if default is None else not default
    if isinstance(default, str):
        return "other"
    return default + 1 if isinstance(default, int) else default / 2 or 0.25


@pytest.mark.parametrize("architecture", [SEQ2SEQ, DECODER])
def test_no_key_is_dropped_in_silence(tmp_path, architecture):
    for key in DEFAULTS:
        given = {"eos_token_id": 2} | ({"do_sample": True} if key in SAMPLING else {})
        before = read(tmp_path, architecture, DEFAULTS | given)
        found = read(tmp_path, architecture, DEFAULTS | given | {key: other_value(key)})
        is_told = any(f": {key} is " in line for line in found.warnings)
        assert before.warnings == ()
        assert is_told or key in NO_EFFECT or found != before, key


def test_unknown_keys_are_warned_about(tmp_path):
    (line,) = read(tmp_path, DECODER, {"my_penalty": 2}).warnings
    assert line.startswith("generation_config.json: my_penalty is 2; a search here does not")


@pytest.mark.parametrize(
    "architecture, keys, fields",
    [
        (DECODER, {}, {}),
        (DECODER, {"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        (DECODER, {"max_new_tokens": 7}, {"max_extra_length": 7}),
        (DECODER, {"top_k": 5}, {}),  # of sampling
        (
            DECODER,
            {"do_sample": True},
            {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.0},
        ),
        (DECODER, {"do_sample": True, "top_k": 0, "top_p": 1}, {"temperature": 1.0}),
        (SEQ2SEQ, {}, {"beam_size": 1, "alpha": 1.0, "length_penalty": "power"}),
        (SEQ2SEQ, {"num_beams": None, "length_penalty": 0.8}, {"beam_size": 1, "alpha": 0.8}),
        (SEQ2SEQ, {"do_sample": True, "top_p": 0.9}, {"top_p": 0.9, "top_k": 50}),
        (SEQ2SEQ, {"length_penalty": None}, {"alpha": 1.0}),
    ],
)
def test_settings_become_fields(tmp_path, architecture, keys, fields):
    found = read(tmp_path, architecture, keys)
    assert {f"decode.{name}": value for name, value in fields.items()}.items() <= (
        found.fields.items()
    )
    assert found.warnings == ()


@pytest.mark.parametrize(
    "keys, line",
    [
        ({"length_penalty": -1.0}, "length_penalty is -1.0; it must lie in [0, 10] here (decode.a"),
        ({"num_beams": "many"}, "num_beams is 'many'; it must be of type int here (decode.beam_s"),
        ({"forced_bos_token_id": "x"}, "forced_bos_token_id is 'x'; it must be a token's id"),
        ({"repetition_penalty": 2.0}, "repetition_penalty is 2.0; a search here does not"),
    ],
)
def test_values_that_are_not_possible_here(tmp_path, keys, line):
    found = read(tmp_path, SEQ2SEQ, keys)
    assert f"generation_config.json: {line}" in found.warnings[0]
    assert found.fields["decode.alpha"] == 1.0 and found.fields["decode.beam_size"] == 1


def test_special_tokens_of_generation_take_precedence(tmp_path):
    """In transformers generation_config.json decides how outputs begin and end."""
    keys = {"decoder_start_token_id": 5, "eos_token_id": [6, 7]}
    found = read(tmp_path, SEQ2SEQ, keys, {"decoder_start_token_id": 2, "eos_token_id": 2})
    assert (found.start, found.ends) == (5, (6, 7))
    assert "eos_token_id is [6, 7]; outputs of an encoder-decoder end with 6" in found.warnings[0]
    assert read(tmp_path, SEQ2SEQ, {}).start is None


def test_older_models_have_the_keys_in_config_json(tmp_path):
    config = {"num_beams": 4, "length_penalty": 2.0, "hidden_size": 4, "forced_bos_token_id": 3}
    found = read(tmp_path, SEQ2SEQ, None, config)
    assert (found.fields["decode.beam_size"], found.fields["decode.alpha"]) == (4, 2.0)
    assert found.head == (3,)
    assert read(tmp_path, SEQ2SEQ, {}, config).fields["decode.beam_size"] == 1


@pytest.mark.parametrize(
    "architecture, decode",
    [
        (SEQ2SEQ, {"beam_size": 5, "alpha": 0.7, "length_penalty": "power"}),
        (SEQ2SEQ, {"beam_size": 5, "alpha": 0.0}),
        (SEQ2SEQ, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}),
        (DECODER, {"beam_size": 1, "max_extra_length": 33}),
        (DECODER, {"temperature": 0.7}),
        (DECODER, {"temperature": 1.0, "top_k": 3, "repetition_penalty": 1.5}),
    ],
)
def test_what_is_exported_comes_back(tmp_path, architecture, decode):
    keys = generation_keys(DecodeConfig(**decode), architecture == SEQ2SEQ, 64)
    found = read(tmp_path, architecture, keys)
    fields = {name.removeprefix("decode."): value for name, value in found.fields.items()}
    assert {"beam_size": 1, **fields}.items() >= decode.items()
    assert ("top_k" in fields, "top_p" in fields) == ("top_k" in decode, "top_p" in decode)
    assert found.warnings == ()


def test_what_generate_does_in_another_way_is_told():
    greedy = DecodeConfig(search="greedy")
    assert generation_keys(greedy, True, 64) == {"max_length": 64, "num_beams": 1}
    assert search_warnings(greedy, True) == search_warnings(DecodeConfig(alpha=0.0), True) == []
    assert "decode.length_penalty is 'gnmt'" in search_warnings(DecodeConfig(), True)[0]
    (line,) = search_warnings(DecodeConfig(stop="|\n", temperature=1.0), False)
    assert line.startswith("decode.stop is '|\\n'; generate does without it")
