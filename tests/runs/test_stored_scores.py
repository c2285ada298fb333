# SPDX-License-Identifier: Apache-2.0
"""The reference policy of preferences: scores are computed once, stored, and checked."""

import io
import json
import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, dotted
from tests.refusals import assert_refused, message_of
from tests.runs.conftest import with_fields
from transformer_jax.runs.seeds import train_replicas
from transformer_jax.runtime.files import read_made

ASKED = ("old man", "young woman", "dog", "cat", "horse", "child", "teacher", "doctor")
OWN = {"system": "{content}\n", "user": "Q: {content}\n", "assistant": "A: {content}{eos}\n"}


@pytest.fixture(scope="module")
def config(language_model, tiny_language_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for split, asked in (("train", ASKED[:6]), ("valid", ASKED[6:]), ("test", ASKED[5:])):
        pairs = [{"prompt": one, "chosen": "It sleeps.", "rejected": "A walk"} for one in asked]
        (folder / split).write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    own = {f"data.{split}_text": str(folder / split) for split in ("train", "valid", "test")}
    own |= {f"task.{role}_turn": text for role, text in OWN.items()} | {"task.template": None}
    own |= {"task.name": "preference", "data.name": "preferences", "train.label_smoothing": 0.0}
    own |= {"train.init_from": str(language_model.workdir)}
    own |= {"optimizer.schedule": "constant", "optimizer.learning_rate": 1e-2}
    own |= {"model.dropout_rate": 0.0}

    def config(**more):
        unread = ("data.packing", "data.documents")
        kept = {name: value for name, value in tiny_language_model.items() if name not in unread}
        return tj.config(QUICKSTART, kept | own | dotted(more))

    return config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return tj.train(config(), tmp_path_factory.mktemp("preferring") / "run")


def test_the_margin_of_held_out_pairs_rises(language_model, run):
    still = run.with_params(language_model.params).evaluate(split="valid")
    assert abs(still["margin"]) < 1e-5 and still["loss"] == pytest.approx(np.log(2), rel=1e-5)
    found = run.evaluate(split="valid")
    assert found["margin"] > 0.1 and found["accuracy"] == 1 and found["loss"] < still["loss"]
    assert found["margin"] == pytest.approx(found["chosen_reward"] - found["rejected_reward"])
    assert len(run.predict(["dog"], max_extra_length=4)) == 1


def test_what_was_computed_is_kept(language_model, config, run, tmp_path):
    own = tmp_path / "base"
    shutil.copytree(language_model.workdir, own)
    changes = {"train__init_from": str(own)}
    half = tj.train(config(**changes, train__num_steps=15), tmp_path / "run")
    assert len(list((tmp_path / "run" / "reference").iterdir())) == 4  # of two splits
    shutil.rmtree(own)
    language_model.with_params(jax.tree.map(lambda x: 2 * x, language_model.params)).save(own)
    told = message_of(lambda: half.evaluate(split="test"))
    assert "was compared with another checkpoint of" in told
    shutil.rmtree(own)
    resumed = tj.train(config(**changes), tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, resumed.params, run.params)
    loaded = tj.load(tmp_path / "run")
    assert loaded.evaluate(split="valid") == resumed.evaluate(split="valid")
    told = message_of(lambda: loaded.evaluate(split="test"))
    assert "'preference' compares with the run that training starts from" in told
    assert "is not there; bring it back" in told
    assert half.step == 15


def test_a_damaged_file_is_computed_again(run):
    """Damage of all kinds: `tests/runtime/test_files.py`."""
    expected = run.evaluate(split="valid")
    for path in (run.workdir / "reference").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert run.evaluate(split="valid") == expected


def test_an_address_in_a_loaded_config_is_not_followed(language_model, config, run, tmp_path):
    copy = with_fields(run.workdir, tmp_path / "run", {"train.init_from": "http://h/b"})
    loaded = tj.load(copy)
    assert loaded.evaluate(split="valid") == run.evaluate(split="valid")  # which is kept
    for one in (loaded, loaded.with_config({"eval.num_examples": 1})):
        assert ", an address, " in message_of(lambda one=one: one.evaluate(split="test"))
    named = tj.load(copy, base=language_model.workdir)
    assert named.evaluate(split="test") == run.evaluate(split="test")


def stored_scores(workdir):
    """Stored log-probabilities, a tuple for each split and side."""
    contents = [read_made(path, path.name) for path in (workdir / "reference").iterdir()]
    return {tuple(np.load(io.BytesIO(made))["log_probs"]) for made in contents if made}


def test_adapters_learn_preferences_too_and_seeds_share_the_stored_scores(config, run, tmp_path):
    configs = {f"seed_{i}": config(lora__rank=2, seed=i) for i in range(2)}
    for replica in train_replicas(configs, tmp_path).values():
        assert replica.evaluate(split="valid")["margin"] > 0.01
    for name in configs:
        stored = stored_scores(tmp_path / name)
        assert len(stored) == 4
        validated = {scores for scores in stored if len(scores) == 2}  # of two held-out pairs
        assert len(validated) == 2 and validated <= stored_scores(run.workdir)


def test_what_has_no_reference_is_refused(config, tmp_path):
    def train(run):
        return lambda: tj.train(config(train__init_from=run), tmp_path / "run")

    assert_refused({"set it to the workdir of one": train(None), "nowhere": train("nowhere")})
