# SPDX-License-Identifier: Apache-2.0
"""Configs of older runs mean what they meant."""

import functools
import json

import pytest

from tests.refusals import assert_refused
from transformer_jax.runs.config import load_json, model_options, resolve_file

MEANINGS = [
    (
        "model",
        {"full_attention_every": 3, "attention_window": 4, "attention_radius": 10},
        {"model.layers": "2 x default | attention_window=none", "model.attention_window": 4},
    ),
    ("model", {"full_attention_every": None}, {"model.layers": None}),
    ("train", {"remat": True}, {"train.remat": "full"}),
    ("train", {"remat": False}, {"train.remat": "none"}),
    ("train", {"remat": "dots"}, {"train.remat": "dots"}),
    ("optimizer", {"cycle_steps": None, "initial_accumulator": 0.0}, {"optimizer.name": "adam"}),
    ("data", {"synthetic_seed": 0}, {"data.synthetic_size": 20_000}),
    (
        "logging",
        {"wandb": "study"},
        {"logging.trackers": "tensorboard,wandb", "logging.project": "study"},
    ),
    (
        "logging",
        {"wandb": "study", "trackers": None},
        {"logging.trackers": "wandb", "logging.project": "study"},
    ),
]
GONE = {
    ("optimizer", "name"): ("adagrad", "write 'adam' there"),
    ("optimizer", "schedule"): ("cosine_cycles", "write 'cosine' there"),
    ("model", "attention_radius"): (3, "and is 10 since 2026-11-28"),
    ("model", "full_attention_every"): ("often", "layers has the item 'often'"),
}


@pytest.fixture
def stored(tmp_path):
    """`stored(section, fields)`: the path of a config.json with these fields."""

    def store(section, fields):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({section: fields}))
        return path

    return store


@pytest.mark.parametrize(("section", "fields", "meaning"), MEANINGS)
def test_former_fields_are_those_that_replaced_them(stored, section, fields, meaning):
    path = stored(section, fields)
    for values in (load_json(path).values, resolve_file(path, {}).values):
        assert {field: values[field] for field in meaning} == meaning


def test_a_run_starts_from_the_model_of_an_older_one(stored):
    path = stored("model", {"full_attention_every": 2, "attention_window": 4})
    options = model_options(str(path.parent))
    assert options == {
        "model.layers": "default | attention_window=none",
        "model.attention_window": 4,
    }


def test_what_is_gone_is_named_with_a_way_out(stored):
    def load(section, field, value):
        local = {"attention_span": "local_p"} if field == "attention_radius" else {}
        load_json(stored(section, {field: value} | local))

    assert_refused(
        {words: functools.partial(load, *place, value) for place, (value, words) in GONE.items()}
    )
