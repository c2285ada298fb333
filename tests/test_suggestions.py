# SPDX-License-Identifier: Apache-2.0
"""Suggestions for unknown names: what is near or known elsewhere, and nothing else."""

from tests.refusals import assert_refused
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


def test_only_near_names_are_suggested():
    suggested = {"trian": "train", "work-dir": "workdir", "WorkDir": "workdir", "beam": "beam_size"}
    suggested |= dict.fromkeys(["d_model", "rtx4090", "b", ""])
    names = ["train", "workdir", "modules", "beam_size", "t4"]
    assert {word: nearest(word, names) for word in suggested} == suggested


def test_a_field_is_suggested_by_the_words_of_other_programs():
    suggested = {
        "train.batch_size": ["train.tokens_per_batch", "train.rows_per_device"],
        **dict.fromkeys(["lr", "optimizer.lr", "learning_rate"], ["optimizer.learning_rate"]),
        "train.weight_decay": ["optimizer.weight_decay"],
        "train.epochs": ["train.num_steps"],
        **dict.fromkeys(["model.hidden-size", "model.n_embd", "modle.d_model"], ["model.d_model"]),
        "model.dropout": ["model.dropout_rate"],
        "train.fp16": ["model.dtype"],
        "train.seed": ["seed"],
        "model.vocab_size": ["tokenizer.vocab_size"],
        "data.block_size": ["data.max_length", "model.max_length"],
        "model.d_modle": ["model.d_model"],
        "modle": ["model"],
        "decode.beam": ["decode.beam_size"],
        **{"model.foo": [], "foo.bar": [], "3": []},
    }
    assert {name: suggest_fields(name, KNOWN) for name in suggested} == suggested


def test_synonyms_lead_to_what_exists():
    assert {field for fields in FIELD_SYNONYMS.values() for field in fields} <= FIELDS.keys()
    for field, values in VALUE_SYNONYMS.items():
        for word, advice in values.items():
            assert advice.split()[0] in CHOICES[field] and word not in CHOICES[field]
    words = "did you mean silu with model.gated_feed_forward=true?"
    assert_refused({words: lambda: CHOICES["model.activation"].find("swiglu")})


def test_a_missing_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "quickstart.py").touch()
    (tmp_path / "other.py").touch()
    suggestion = f"; did you mean {tmp_path}/quickstart.py?"
    assert suggest_file(tmp_path / "quickstrat.py") == suggestion
    assert suggest_file(tmp_path / "absent" / "quickstart", tmp_path) == suggestion
    assert suggest_file(tmp_path / "unlike.py") == ""
    words = f"there is no config file {tmp_path}/quickstrat.py; did you mean"
    assert_refused({words: lambda: load_config(tmp_path / "quickstrat.py")})
