# SPDX-License-Identifier: Apache-2.0
"""Runs that learn from a teacher: training, resuming, loading, and teachers that are refused."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import transformer_jax as tj
from tests.compiled import run as compiled
from tests.conftest import QUICKSTART, dotted
from tests.refusals import assert_refused, message_of
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.data.sources import open_split
from transformer_jax.lab.plan.program import AbstractTraining
from transformer_jax.losses import TopPredictions
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.frozen import open_teacher
from transformer_jax.runs.seeds import train_replicas
from transformer_jax.tasks import teachers
from transformer_jax.training.profiling import count_products, step_products

STUDENT = {"model.d_model": 8, "model.norm": "rms", "train.loss": "distillation"}
STUDENT |= {"train.distillation.weight": 0.9, "train.distillation.temperature": 2.0}
STUDENT |= {
    "model.dropout_rate": 0.0,
    "model.scan_layers": True,
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def teacher(language_model, tmp_path_factory):
    """A run that predicts the token after the one that its data has."""
    params = dict(language_model.params)
    params["embedding"] = {"table": np.roll(params["embedding"]["table"], 1, axis=0)}
    return language_model.with_params(params).save(tmp_path_factory.mktemp("teacher") / "run")


@pytest.fixture(scope="module")
def config(teacher, tiny_language_model):
    def config(**more):
        changes = tiny_language_model | STUDENT
        changes |= {"train.distillation.teacher": str(teacher.workdir)}
        return tj.config(QUICKSTART, changes | dotted(more))

    return config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """A run whose layers are scanned, as those of its teacher are not."""
    return tj.train(config(), tmp_path_factory.mktemp("student") / "run")


def divergence(run, teacher):
    """Mean KL(teacher || run) of the next token."""
    inputs = run.batch(["The old man sees a dog.", "A woman walks home."])
    q, p = (
        log_softmax(compiled(one.model.apply, {"params": one.params}, **inputs), axis=-1)
        for one in (run, teacher)
    )
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_a_student_is_nearer_to_its_teacher_than_one_of_the_data(run, teacher, language_model):
    assert divergence(run, teacher) < 0.5 * divergence(language_model, teacher)
    # Validation reports the loss of the data, as without a teacher.
    found = run.evaluate(split="valid")
    assert found["loss"] == pytest.approx(np.log(found["perplexity"]), rel=1e-5)


def test_a_run_needs_its_teacher_only_in_training(config, run, teacher, language_model, tmp_path):
    own, copy = tmp_path / "teacher", tmp_path / "run"
    shutil.copytree(teacher.workdir, own)
    changes = {"train__distillation__teacher": str(own)}
    tj.train(config(**changes, train__num_steps=15), copy)
    snapshot = open_snapshot(copy / "checkpoints")
    assert snapshot.provenance["teacher"] == open_snapshot(own / "checkpoints").id
    resumed = tj.train(config(**changes), copy)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, run.params)
    shutil.rmtree(own)
    language_model.save(own)
    told = message_of(lambda: tj.train(config(**changes, train__num_steps=45), copy))
    assert "was trained with another teacher: step 30" in told
    shutil.rmtree(own)
    loaded = tj.load(copy)
    assert loaded.predict(["The"]) == run.predict(["The"])
    assert loaded.evaluate(split="valid")["loss"] == run.evaluate(split="valid")["loss"]
    told = message_of(lambda: tj.train(config(**changes, train__num_steps=45), copy))
    assert "compares with a teacher, and" in told and "is not there; bring it back" in told


def test_seeds_share_the_teacher(config, teacher, tmp_path, monkeypatch):
    """As they share the base of adapters (`test_frozen.py`)."""

    def read_the_teacher(replicas, *_):
        shapes = jax.eval_shape(lambda: teacher.params)
        frozen = replicas.frozen({"teacher": shapes})
        jax.tree.map(np.testing.assert_array_equal, frozen["teacher"], teacher.params)
        assert replicas.task.loss_options.teacher.task.model == teacher.model
        raise tj.Stopped("not trained")

    monkeypatch.setattr("transformer_jax.runs.seeds.fit", read_the_teacher)
    with pytest.raises(tj.Stopped):
        train_replicas({f"seed_{i}": config(seed=i) for i in range(2)}, tmp_path / "many")


def test_stored_predictions_take_the_place_of_the_teacher(config, run, teacher, tmp_path):
    """With all tokens of the vocabulary, they train as the teacher does; also in tiles, in
    micro-batches and with unrolled layers."""
    own, size = tmp_path / "teacher", teacher.tokenizer["text"].vocab_size
    shutil.copytree(teacher.workdir, own)
    changes = {"train__distillation__teacher": str(own), "train__distillation__top_k": size}
    changes |= {"train__loss_tiles": 2, "train__accumulation_steps": 2}
    changes |= {"model__scan_layers": False}
    tj.train(config(**changes, train__num_steps=15), tmp_path / "run")
    assert list((tmp_path / "run" / "reference").glob("teacher-*"))
    shutil.rmtree(own)
    resumed = tj.train(config(**changes), tmp_path / "run")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), resumed.params, run.params
    )


def test_stored_predictions_of_others_are_not_used(config, teacher, tmp_path, monkeypatch):
    examples = open_split(teacher.settings.data, "train")[:4]

    def open_stored(examples=examples, trained_with=None, **changes):
        changes = {"train__distillation__top_k": 3} | changes
        settings = read_settings(config(**changes))
        return open_teacher(settings, teacher.tokenizer, tmp_path, examples, trained_with)[0]

    def predict(task, params, items, rows, count, temperature):
        made.append(temperature)
        return TopPredictions(np.zeros((9, count), np.int32), np.zeros((9, count)))

    made = []
    monkeypatch.setattr(teachers, "predict_top", predict)
    first = open_stored()
    assert open_stored().top.tokens.shape == first.top.tokens.shape and made == [2.0]
    open_stored(train__distillation__temperature=3.0)
    open_stored(train__distillation__top_k=2)
    open_stored(examples[::-1])
    assert made == [2.0, 3.0, 2.0, 2.0]
    teacher.with_params(teacher.params).save(tmp_path / "other")
    other = {"train__distillation__teacher": str(tmp_path / "other")}
    assert open_stored(**other).id != first.id and len(made) == 5
    message = "was trained with another teacher: step 7"
    assert_refused({message: lambda: open_stored(trained_with="step 7")})
    monkeypatch.undo()
    diverged = jax.tree.map(lambda x: np.full_like(x, np.nan), teacher.params)
    teacher.with_params(diverged).save(tmp_path / "diverged")
    other = {"train__distillation__teacher": str(tmp_path / "diverged")}
    assert_refused({"the teacher predicts NaN": lambda: open_stored(**other)})


def test_memory_and_work_of_a_teacher_are_planned(config, teacher):
    settings = read_settings(config())
    plain = dataclasses.replace(
        settings, train=dataclasses.replace(settings.train, loss="cross_entropy")
    )
    with_teacher, alone = map(AbstractTraining, (settings, plain))
    taught = with_teacher.state.frozen["teacher"]
    assert jax.tree.structure(taught) == jax.tree.structure(teacher.params)
    products = [step_products(one.task, one.state, one.batch) for one in (with_teacher, alone)]
    teacher_task = with_teacher.task.loss_options.teacher.task
    forward = count_products(teacher_task.loss, taught, alone.batch, None, {}).flops
    assert products[0].flops == products[1].flops + forward


def test_what_cannot_teach_is_refused(config, old_workdir, tmp_path):
    def train(**changes):
        return lambda: tj.train(config(**changes), tmp_path / "run")

    other = old_workdir("classification")
    size = tj.load(other).tokenizer["text"].vocab_size
    together = {"train__distillation__top_k": 4, "data__packing": "together"}
    assert_refused(
        {
            "names no run: set it to the workdir": train(train__distillation__teacher=None),
            "nowhere": train(train__distillation__teacher="nowhere"),
            "does not read it": train(train__r_drop=1.0),
            "set data.packing to 'apart', or leave top_k out": train(**together),
            f"tokens of side 'text', not {size}; train both": train(train__init_from=str(other)),
        }
    )
