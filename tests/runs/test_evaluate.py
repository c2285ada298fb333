# SPDX-License-Identifier: Apache-2.0
"""The split that is scored if none is named, and data without a split."""

import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.runs.evaluate import selecting_metrics

NO_TEST = {"data.test_source": None, "data.test_target": None}


@pytest.fixture(scope="module")
def without_test(used):
    """The run without a test split, which searches greedily."""
    return used.with_config(NO_TEST | {"decode.beam_size": 1})


def test_without_a_test_split_the_validation_split_is_scored_and_told(used, without_test, caplog):
    scores = without_test.evaluate()
    assert scores["split"] == "valid" and scores == without_test.evaluate(split="valid")
    assert {type(value) for value in scores.values()} <= {int, float, str}
    assert "there is no test split (data.test_source is not set" in caplog.text
    assert "scoring the validation split" in caplog.text
    assert used.evaluate(beam_size=1)["split"] == "test"


def test_the_metrics_that_select_are_those_of_the_configs(used, tmp_path):
    assert selecting_metrics([used.workdir, tmp_path, used.workdir]) == ["bleu"]


def test_a_split_whose_files_are_missing_is_an_error(used, without_test, caplog):
    source = "data.test_source"
    gone = used.with_config({source: "gone.txt"})
    half = used.with_config({"data.test_target": None})
    other = used.with_config(NO_TEST | {"data.name": "sst2", "data.dir": "nowhere"})
    assert_refused(
        {
            f"{source} is not set": lambda: without_test.evaluate(split="test"),
            "gone.txt": gone.evaluate,
            f"data.test_target is not set, but {source} is": half.evaluate,
            "nowhere": other.evaluate,  # the validation split's file
        }
    )
    assert "sst2 has no split 'test'" in caplog.text


def test_training_without_a_validation_split_fails_before_anything_is_written(
    tiny_config, tmp_path
):
    config = tiny_config({"data.valid_source": None, "data.valid_target": None})
    message = "there is no validation split (data.valid_source is not set"
    assert_refused({message: lambda: tj.train(config, tmp_path / "run")})
    assert not (tmp_path / "run" / "tokenizer").exists()
