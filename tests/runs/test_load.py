# SPDX-License-Identifier: Apache-2.0
"""Runs are loaded from one checkpoint each, wherever they are, and predict together."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.refusals import assert_refused

LINES = ["The dog sees a cat.", "", "The old teacher reads the new books."]


def test_a_checkpoint_may_be_chosen(trained_workdir, trained):
    earlier = tj.load(trained_workdir, checkpoint=15)
    assert earlier.step == 15
    best = tj.load(trained_workdir, checkpoint="best")
    assert best.step in (15, 30)
    average = tj.load(trained_workdir, average=2)
    assert average.step == 30
    mean = jax.tree.map(lambda a, b: (a + b) / 2, earlier.params, trained.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), average.params, mean
    )


def listing(workdir):
    """The files of a run and when they were written."""
    return {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}


def test_loading_changes_nothing(language_model_workdir, tmp_path):
    workdir = shutil.copytree(language_model_workdir, tmp_path / "run")
    before = listing(workdir)
    tj.load(workdir).predict(LINES[:1])
    assert listing(workdir) == before


def test_no_run_and_no_checkpoint(workdir, trained_workdir, tmp_path):
    shutil.rmtree(workdir / "checkpoints")
    assert_refused(
        {
            "absent holds no run: config.json is missing": lambda: tj.load(tmp_path / "absent"),
            f"no checkpoint in {workdir}": lambda: tj.load(workdir),
            "; take latest, best or one of 15, 30": lambda: tj.load(trained_workdir, checkpoint=7),
            "cannot average 3 checkpoints": lambda: tj.load(trained_workdir, average=3),
        }
    )


@pytest.mark.parametrize("average", [None, 2])
def test_a_checkpoint_that_appears_meanwhile_is_not_mixed_in(workdir, meanwhile, average):
    expected = tj.load(workdir, average=average)
    checkpoints = workdir / "checkpoints"
    meanwhile(lambda: shutil.copytree(checkpoints / "15", checkpoints / "31"))
    run = tj.load(workdir, average=average)
    assert run.step == 30 and (checkpoints / "31").exists()
    jax.tree.map(np.testing.assert_array_equal, run.params, expected.params)


# --- Ensembles ---


TURNS = {
    "task.template": None,
    "task.system_turn": "{content}\n",
    "task.user_turn": "Q: {content}\n",
    "task.assistant_turn": "A: {content}{eos}\n",
}


@pytest.fixture(scope="module")
def members(trained_workdir, trained):
    """Two checkpoints of one run, which predict differently."""
    return [trained, tj.load(trained_workdir, 15)]


@pytest.fixture(scope="module")
def ensemble(members):
    return tj.load_ensemble(*members)


@pytest.fixture(scope="module")
def language_model(language_model, random_params):
    """The run with random parameters: those of the run end each text at once."""
    return language_model.with_params(random_params(language_model.task))


def test_changes_are_made_to_each_member(ensemble, members):
    head = {"decoder.layer_0.cross_attention.heads[0]": 0}
    changed = ensemble.with_config({"decode.beam_size": 1}).patched(head)
    assert changed.settings.decode.beam_size == 1
    expected = tj.load_ensemble(*(run.patched(head) for run in members))
    assert changed.score(LINES, LINES) == expected.score(LINES, LINES)
    assert changed.score(LINES, LINES) != ensemble.score(LINES, LINES)
    same = ensemble.with_params((members[0].params,) * 2)
    expected = members[0].score(LINES, LINES)
    np.testing.assert_allclose(same.score(LINES, LINES), expected, rtol=1e-5)


def test_members_share_task_and_tokenizers(trained, language_model):
    one, other = trained.workdir, language_model.workdir

    def with_task(workdir=one, **changes):
        task = dataclasses.replace(trained.task, **changes)
        member = dataclasses.replace(trained, task=task, workdir=workdir)
        return lambda: tj.load_ensemble(trained, member)

    short = dataclasses.replace(trained.model.config, positions="learned", max_length=4)
    reads_less = with_task(other, model=type(trained.model)(short))
    ending = f"{one} and {other} have different ones"
    assert_refused(
        {
            "holds no run": lambda: tj.load_ensemble(trained, one / "absent"),
            f"one task; {ending}": lambda: tj.load_ensemble(trained, language_model),
            f"an ensemble has one tokenizer of text; {ending}": with_task(
                other, tokenizers=language_model.tokenizer
            ),
            "an ensemble generates tokens": with_task(model=None),
            f"; name {other} first": reads_less,
            "reach to max_length 4": reads_less,
        }
    )


def test_language_models_continue_a_text_together(language_model):
    other = language_model.with_params(jax.tree.map(lambda x: -x, language_model.params))
    pair = tj.load_ensemble(language_model, other)
    options = {"max_extra_length": 4, "beam_size": 1}
    ((found,),) = pair.n_best(["the do"], **options)
    assert "".join(pair.stream("the do", **options)) == found.text
    chat = tj.Chat(pair.with_config({"task.name": "instruction", **TURNS}), **options)
    assert "".join(chat.ask("the dog"))
    judged = pair.with_config({"task.name": "preference", **TURNS})
    penalized = options | {"repetition_penalty": 1.2}
    assert_refused(
        {
            "scales the logits of one model": lambda: pair.predict(["the do"], **penalized),
            "evaluate: task preference compares a model with its": lambda: judged.frozen,
        }
    )


def test_what_belongs_to_one_run_is_refused(ensemble):
    words = "this is an ensemble of several runs; take one of"
    assert_refused(
        {
            words: lambda: ensemble.attention("A dog."),
            f"model_inputs: {words}": lambda: ensemble.batch(["A dog."], ["Ein Hund."]),
            f"head_importance: {words}": lambda: ensemble.head_importance(),
            f"save: {words}": lambda: ensemble.save("elsewhere"),
            f"records: {words}": lambda: ensemble.records,
            f"hook_points: {words}": lambda: ensemble.hook_points,
        }
    )


def test_a_member_that_is_not_finite_is_named(trained, workdir):
    broken = jax.tree.map(lambda x: x * np.nan, trained.params)
    member = dataclasses.replace(trained.with_params(broken), workdir=workdir)
    with pytest.raises(tj.UserError, match=f"infinite in {workdir}: so is the parameter"):
        tj.load_ensemble(trained, member).score(LINES[:1], LINES[:1])
    assert "30, 30" in repr(tj.load_ensemble(trained, member))
