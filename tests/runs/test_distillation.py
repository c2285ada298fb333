# SPDX-License-Identifier: Apache-2.0
"""Runs that learn from a teacher: training, resuming, loading, and teachers that are refused."""

import dataclasses
import shutil
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.seeds import train_replicas
from transformer_jax.tools.plan.program import abstract_training
from transformer_jax.training.profiling import step_products

OLD = Path(__file__).parent / "old_workdirs"
STUDENT = {"model.d_model": 8, "model.norm": "rms", "train.loss": "distillation"}
STUDENT |= {"train.distillation.weight": 0.9, "train.distillation.temperature": 2.0}

STUDENT |= {
    "model.dropout_rate": 0.0,
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def teacher(language_model):
    """A finished run."""
    return language_model


@pytest.fixture(scope="module")
def config(teacher, tiny_language_model):
    def config(**more):
        changes = tiny_language_model | STUDENT
        changes |= {"train.distillation.teacher": str(teacher.workdir)}
        return tj.config(QUICKSTART, changes | {k.replace("__", "."): v for k, v in more.items()})

    return config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return tj.train(config(), tmp_path_factory.mktemp("student") / "run")


def divergence(run, teacher):
    """Mean KL(teacher || run) of the next token."""
    inputs = run.batch(["The old man sees a dog.", "A woman walks home."])
    q, p = (
        jax.nn.log_softmax(one.model.apply({"params": one.params}, **inputs))
        for one in (run, teacher)
    )
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def test_a_student_is_nearer_to_its_teacher(config, run, teacher, tmp_path):
    alone = tj.train(config(train__distillation__weight=0.0), tmp_path / "run")
    assert divergence(run, teacher) < 0.9 * divergence(alone, teacher)
    # Validation reports the loss of the data, as without a teacher.
    found = run.evaluate(split="valid")
    assert found["loss"] == pytest.approx(np.log(found["perplexity"]), rel=1e-5)


def test_a_run_needs_its_teacher_only_in_training(config, run, teacher, tmp_path, message_of):
    own, copy = tmp_path / "teacher", tmp_path / "run"
    shutil.copytree(teacher.workdir, own)
    changes = {"train__distillation__teacher": str(own)}
    tj.train(config(**changes, train__num_steps=15), copy)
    snapshot = open_snapshot(copy / "checkpoints")
    assert snapshot.provenance["teacher"] == open_snapshot(own / "checkpoints").id
    resumed = tj.train(config(**changes), copy)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, run.params)
    tj.train(tj.config(own / "config.json", {"train.num_steps": 31}), own)
    told = message_of(lambda: tj.train(config(**changes, train__num_steps=45), copy))
    assert "was trained with another teacher: step 30" in told
    shutil.rmtree(own)
    loaded = tj.load(copy)
    assert loaded.predict(["The"]) == run.predict(["The"])
    assert loaded.evaluate(split="valid")["loss"] == run.evaluate(split="valid")["loss"]
    told = message_of(lambda: tj.train(config(**changes, train__num_steps=45), copy))
    assert "compares with a teacher, and" in told and "is not there; bring it back" in told


def test_scanned_layers_and_seeds_share_the_teacher(config, run, tmp_path):
    changes = {"model__scan_layers": True, "train__accumulation_steps": 2}
    configs = {f"seed_{i}": config(**changes, seed=i) for i in range(2)}
    each = train_replicas(configs, tmp_path / "many")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), each["seed_0"].params, run.params
    )


def test_stored_predictions_take_the_place_of_the_teacher(config, run, teacher, tmp_path):
    """With all tokens of the vocabulary, they train as the teacher does."""
    own, size = tmp_path / "teacher", teacher.tokenizer["text"].vocab_size
    shutil.copytree(teacher.workdir, own)
    changes = {"train__distillation__teacher": str(own), "train__distillation__top_k": size}
    tj.train(config(**changes, train__num_steps=15), tmp_path / "run")
    assert (tmp_path / "run" / "reference" / "teacher.npz").exists()
    shutil.rmtree(own)
    resumed = tj.train(config(**changes), tmp_path / "run")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), resumed.params, run.params
    )
    few = {"train__distillation__top_k": 4, "train__loss_tiles": 2, "model__scan_layers": True}
    configs = {f"seed_{i}": config(**few, seed=i) for i in range(2)}
    each = train_replicas(configs, tmp_path / "many")
    assert divergence(each["seed_0"], teacher) < 1.3 * divergence(run, teacher)


def test_memory_and_work_of_a_teacher_are_planned(config, teacher):
    settings = read_settings(config())
    plain = dataclasses.replace(
        settings, train=dataclasses.replace(settings.train, loss="cross_entropy")
    )
    with_teacher, alone = map(abstract_training, (settings, plain))
    taught = with_teacher.state.frozen["teacher"]
    assert jax.tree.structure(taught) == jax.tree.structure(teacher.params)
    products = [
        step_products(one.task, one.state.params, one.batch, one.state.frozen)
        for one in (with_teacher, alone)
    ]
    teacher_task = with_teacher.task.loss_options.teacher.task
    forward = step_products(teacher_task, taught, alone.batch, {}).flops // 3
    assert products[0].flops == products[1].flops + forward


def test_what_cannot_teach_is_refused(config, tmp_path, message_of):
    def told(**changes):
        return message_of(lambda: tj.train(config(**changes), tmp_path / "run"))

    assert "names no run: set it to the workdir" in told(train__distillation__teacher=None)
    assert "nowhere" in told(train__distillation__teacher="nowhere")
    assert "does not read it" in told(train__r_drop=1.0)
    together = told(train__distillation__top_k=4, data__packing="together")
    assert "set data.packing to 'apart', or leave top_k out" in together
    with tarfile.open(OLD / "classification.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    size = tj.load(tmp_path / "classification").tokenizer["text"].vocab_size
    message = told(train__init_from=str(tmp_path / "classification"))
    assert "(train.distillation.teacher) has another vocabulary: " in message
    assert f"tokens of side 'text', not {size}; train both with the same tokenizers" in message
