# SPDX-License-Identifier: Apache-2.0
"""Ensembles of runs: predictions and scores of all members, and runs that do not go together."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
import scipy.special

import transformer_jax as tj
from tests.compiled import run as compiled
from transformer_jax.nn.int8 import convert_weights

TURNS = {
    "task.template": None,
    "task.system_turn": "{content}\n",
    "task.user_turn": "Q: {content}\n",
    "task.assistant_turn": "A: {content}{eos}\n",
}
LINES = ["The dog sees a cat.", "", "The old teacher reads the new books."]


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


@pytest.fixture
def listing(trained_workdir):
    """`listing()`: the files of the run and when they were written."""
    return lambda: {path: path.stat().st_mtime_ns for path in trained_workdir.rglob("*")}


def test_the_perplexity_is_that_of_the_averaged_probabilities(ensemble, members, listing):
    before, nll, count = listing(), 0.0, 0
    for inputs, labels, counted in members[0].batches("test"):
        model = members[0].model
        logits = [compiled(model.apply, {"params": run.params}, **inputs) for run in members]
        mean = np.mean([scipy.special.softmax(each, axis=-1) for each in logits], axis=0)
        of_labels = np.take_along_axis(mean, np.asarray(labels)[..., None], axis=-1)[..., 0]
        nll -= (np.log(of_labels) * counted).sum()
        count += counted.sum()
    found = ensemble.evaluate("test", beam_size=1)
    assert found["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)
    assert (found["steps"], found["split"]) == ([30, 15], "test")
    assert found["ensemble"] == [str(run.workdir) for run in members] and "step" not in found
    assert listing() == before


def test_an_ensemble_of_one_is_its_run(trained, trained_workdir):
    one = tj.load_ensemble(trained_workdir)
    assert one.n_best(LINES) == trained.n_best(LINES)
    assert one.score(LINES, LINES) == trained.score(LINES, LINES)


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


def test_weights_of_each_member_are_quantized(ensemble, members):
    found = convert_weights("int8", ensemble.params)
    expected = tuple(convert_weights("int8", run.params) for run in members)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_members_share_task_and_tokenizers(trained, language_model, message_of):
    refused = functools.partial(message_of, tj.load_ensemble)

    assert "holds no run" in refused(trained, trained.workdir / "absent")
    one, other = trained.workdir, language_model.workdir
    ending = f"{one} and {other} have different ones"
    assert refused(trained, language_model) == f"an ensemble has one task; {ending}"
    task = dataclasses.replace(trained.task, tokenizers=language_model.tokenizer)
    message = refused(trained, dataclasses.replace(trained, task=task, workdir=other))
    assert message == f"an ensemble has one tokenizer of text; {ending}"
    task = dataclasses.replace(trained.task, model=None)
    assert "an ensemble generates tokens" in refused(dataclasses.replace(trained, task=task))
    short = dataclasses.replace(trained.model.config, positions="learned", max_length=4)
    task = dataclasses.replace(trained.task, model=type(trained.model)(short))
    message = refused(trained, dataclasses.replace(trained, task=task, workdir=other))
    assert "reach to max_length 4" in message and message.endswith(f"name {other} first")


def test_language_models_continue_a_text_together(language_model):
    other = language_model.with_params(jax.tree.map(lambda x: -x, language_model.params))
    pair = tj.load_ensemble(language_model, other)
    options = {"max_extra_length": 4, "beam_size": 1}
    ((found,),) = pair.n_best(["the do"], **options)
    assert "".join(pair.stream("the do", **options)) == found.text
    with pytest.raises(tj.UserError, match="repetition_penalty scales the logits of one model"):
        pair.predict(["the do"], repetition_penalty=1.2, **options)

    chat = tj.Chat(pair.with_config({"task.name": "instruction", **TURNS}), **options)
    assert "".join(chat.ask("the dog"))
    judged = pair.with_config({"task.name": "preference", **TURNS})
    with pytest.raises(tj.UserError, match="evaluate: task preference compares a model with its"):
        _ = judged.frozen


def test_what_belongs_to_one_run_is_refused(ensemble, assert_refused):
    calls = {
        "attention": lambda: ensemble.attention("A dog."),
        "batch": lambda: ensemble.batch(["A dog."], ["Ein Hund."]),
        "head_importance": lambda: ensemble.head_importance(),
        "save": lambda: ensemble.save("elsewhere"),
        "records": lambda: ensemble.records,
        "hook_points": lambda: ensemble.hook_points,
    }
    words = "this is an ensemble of several runs; take one of"
    assert_refused({name: (call, words) for name, call in calls.items()})


def test_a_member_that_is_not_finite_is_named(trained, workdir):
    broken = jax.tree.map(lambda x: x * np.nan, trained.params)
    member = dataclasses.replace(trained.with_params(broken), workdir=workdir)
    with pytest.raises(tj.UserError, match=f"infinite in {workdir}: so is the parameter"):
        tj.load_ensemble(trained, member).score(LINES[:1], LINES[:1])
    assert "30, 30" in repr(tj.load_ensemble(trained, member))
