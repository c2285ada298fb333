# SPDX-License-Identifier: Apache-2.0
"""Runs with a draft: the same outputs and scores, and which drafts are refused."""

import dataclasses
import logging
import shutil
import tarfile
from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.errors import UserError

OLD = Path(__file__).parent / "old_workdirs"
LINES = ["two dogs run", "a man sings in the park", "zzz"]


@pytest.fixture(scope="module")
def greedy(trained):
    return trained.n_best(LINES, search="greedy")


def test_greedy_outputs_are_those_of_the_run_alone(trained, trained_workdir, greedy, caplog):
    caplog.set_level(logging.INFO)
    for draft in (str(trained_workdir), "lookup"):
        found = trained.n_best(LINES, search="greedy", draft=draft, draft_length=3)
        for ours, theirs in zip(found, greedy, strict=True):
            assert ours[0].text == theirs[0].text
            assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-4)
    assert "tokens a step" in caplog.text
    # The run is a perfect draft of itself; only what the end of an output cuts off is lost.
    options = {"draft": str(trained_workdir), "draft_length": 3}
    decode = dataclasses.replace(trained.settings.decode, **options)
    assert trained.with_decoding(decode)[0].model.acceptance > 0.5


def test_one_beam_is_greedy_search_and_more_are_refused(trained, greedy):
    found = trained.predict(LINES, beam_size=1, draft="lookup", draft_length=3)
    assert found == [outputs[0].text for outputs in greedy]
    with pytest.raises(UserError, match="greedy search and sampling"):
        trained.predict(LINES, beam_size=4, draft="lookup")
    with pytest.raises(UserError, match="draft_length does nothing"):
        trained.predict(LINES, beam_size=1, draft_length=3)


def test_evaluation_has_the_scores_of_the_run_alone(workdir):
    run = tj.load(workdir)
    alone = run.evaluate(search="greedy", progress=False)
    drafted = run.evaluate(search="greedy", draft="lookup", draft_length=3, progress=False)
    assert drafted == pytest.approx(alone)


def test_a_draft_of_another_kind_or_vocabulary_is_refused(trained, tmp_path):
    for name in ("classification", "translation"):
        with tarfile.open(OLD / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
    for name, message in [
        ("classification", "take one whose model is EncoderDecoder"),
        ("translation", "has another vocabulary"),
        ("missing", "missing"),
    ]:
        with pytest.raises(UserError, match=message):
            trained.predict(LINES, search="greedy", draft=str(tmp_path / name))


def test_a_stored_config_names_a_draft(trained, workdir):
    shutil.copytree(workdir, workdir.parent / "beside")
    beside = {"decode.draft": str(workdir.parent / "beside"), "decode.draft_length": 3}
    run = tj.load(workdir).with_config(beside)
    assert run.predict(LINES, search="greedy") == trained.predict(LINES, search="greedy")
