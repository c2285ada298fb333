# SPDX-License-Identifier: Apache-2.0
"""Suggestions for unknown names: what is near or known elsewhere, and nothing else."""

import pytest

from transformer_jax.runs.config import load_config
from transformer_jax.runs.settings import CHOICES, FIELDS, SECTIONS
from transformer_jax.suggestions import (
    FIELD_SYNONYMS,
    VALUE_SYNONYMS,
    nearest,
    suggest_fields,
    suggest_file,
)

KNOWN = [*SECTIONS, *FIELDS]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("trian", "train"),
        ("work-dir", "workdir"),
        ("WorkDir", "workdir"),
        ("beam", "beam_size"),
        ("d_model", None),
        ("rtx4090", None),
        ("b", None),
        ("", None),
    ],
)
def test_only_near_names_are_suggested(word, found):
    assert nearest(word, ["train", "workdir", "modules", "beam_size", "t4"]) == found


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("train.batch_size", ["train.tokens_per_batch", "train.rows_per_device"]),
        ("lr", ["optimizer.learning_rate"]),
        ("optimizer.lr", ["optimizer.learning_rate"]),
        ("learning_rate", ["optimizer.learning_rate"]),
        ("train.weight_decay", ["optimizer.weight_decay"]),
        ("train.epochs", ["train.num_steps"]),
        ("model.hidden-size", ["model.d_model"]),
        ("model.n_embd", ["model.d_model"]),
        ("model.dropout", ["model.dropout_rate"]),
        ("train.fp16", ["model.dtype"]),
        ("train.seed", ["seed"]),
        ("model.vocab_size", ["tokenizer.vocab_size"]),
        ("data.block_size", ["data.max_length", "model.max_length"]),
        ("modle.d_model", ["model.d_model"]),
        ("model.d_modle", ["model.d_model"]),
        ("modle", ["model"]),
        ("decode.beam", ["decode.beam_size"]),
        ("model.foo", []),
        ("foo.bar", []),
        ("3", []),
    ],
)
def test_a_field_is_suggested_by_the_words_of_other_programs(name, fields):
    assert suggest_fields(name, KNOWN) == fields


def test_synonyms_lead_to_what_exists():
    assert {field for fields in FIELD_SYNONYMS.values() for field in fields} <= FIELDS.keys()
    for field, values in VALUE_SYNONYMS.items():
        registry = CHOICES[field]
        for word, advice in values.items():
            assert advice.split()[0] in registry and word not in registry


def test_a_gated_activation_is_explained(message_of_activation):
    assert message_of_activation("swiglu").endswith(
        "did you mean silu with model.gated_feed_forward=true?"
    )


@pytest.fixture
def message_of_activation():
    def message(name):
        with pytest.raises(ValueError) as caught:
            CHOICES["model.activation"].find(name)
        return str(caught.value)

    return message


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "quickstart.py").touch()
    (tmp_path / "other.py").touch()
    found = f"; did you mean {tmp_path}/quickstart.py?"
    assert suggest_file(tmp_path / "quickstrat.py") == found
    assert suggest_file(tmp_path / "absent" / "quickstart", tmp_path) == found
    assert suggest_file(tmp_path / "unlike.py") == ""
    with pytest.raises(Exception, match=r"there is no config file .*quickstrat.py; did you mean"):
        load_config(tmp_path / "quickstrat.py")
