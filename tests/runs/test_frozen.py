# SPDX-License-Identifier: Apache-2.0
"""Runs with adapters or a draft: training, checkpoints, loading, and runs that are refused."""

import dataclasses
import logging
import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, copy_at_step, dotted
from tests.refusals import assert_refused, message_of
from tests.runs.conftest import with_fields
from transformer_jax.checkpoints.step_folder import PARAMS, TRAINING, named_leaves, saved_arrays
from transformer_jax.cli.main import main
from transformer_jax.runs.seeds import train_replicas
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tasks.language_modeling import LanguageModeling

LORA = {"lora.rank": 2, "lora.targets": "(query|value|inner)/kernel$", "lora.dropout_rate": 0.1}
FASTER = {"optimizer.schedule": "constant", "optimizer.learning_rate": 1e-2}
FASTER |= {"model.dropout_rate": 0.0}
TEXTS = ["two dogs run", "a man sings in the park", "zzz"]


@pytest.fixture(scope="module")
def config(language_model, tiny_language_model):
    def config(**more):
        changes = (
            tiny_language_model | FASTER | LORA | {"train.init_from": str(language_model.workdir)}
        )
        return tj.config(QUICKSTART, changes | dotted(more))

    return config


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return tj.train(config(), tmp_path_factory.mktemp("adapters") / "run")


def test_adapters_learn_and_the_base_stays(language_model, run):
    assert run.evaluate(split="valid")["loss"] < language_model.evaluate(split="valid")["loss"]
    before = named_leaves(language_model.params)
    after = named_leaves(run.params)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name.split("/")[-2] for name in changed} == {"query", "value", "inner"}


def test_a_checkpoint_holds_the_adapters_alone(run):
    folder = run.workdir / "checkpoints" / "30"
    params, training = (saved_arrays(folder, item) for item in (PARAMS, TRAINING))
    assert {name.split("/")[-1] for name in params} == {"down", "up"}
    size = sum(np.prod(one.shape) for one in params.values())
    d_model, heads, hidden = 16, 16, 32
    assert size == 2 * ((d_model + heads) * 2 + d_model + hidden)  # one layer
    moments = [one for name, one in training.items() if "/mu/" in name or "/nu/" in name]
    assert sum(np.prod(one.shape) for one in moments) == 2 * size


def test_what_is_loaded_is_merged_and_can_be_saved(run, tmp_path):
    loaded = tj.load(run.workdir)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)
    assert loaded.predict(["The"]) == run.predict(["The"])
    averaged = tj.load(run.workdir, average=2)
    assert averaged.step == 30
    saved = loaded.save(tmp_path / "saved")
    assert saved.settings.lora.rank is None
    jax.tree.map(np.testing.assert_array_equal, tj.load(saved.workdir).params, run.params)


def test_a_resumed_run_is_the_uninterrupted_one(config, run, tmp_path):
    copy_at_step(run.workdir, 15, tmp_path / "run")
    resumed = tj.train(config(), tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, resumed.params, run.params)
    again = tj.train(config(), tmp_path / "run")  # it has finished
    jax.tree.map(np.testing.assert_array_equal, again.params, run.params)


def test_seeds_together_share_the_base(config, run, tmp_path):
    configs = {f"seed_{i}": config(seed=i) for i in range(2)}
    each = train_replicas(configs, tmp_path / "many")
    for found in (each["seed_0"].params, tj.load(tmp_path / "many" / "seed_0").params):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, run.params)


def test_a_base_that_changed_or_is_damaged_or_gone_is_refused(
    language_model, config, run, tmp_path
):
    own = shutil.copytree(language_model.workdir, tmp_path / "base")
    changes = {"train__init_from": str(own), "train__num_steps": 1}
    adapters = tj.train(config(**changes), tmp_path / "run").workdir
    more = config(**changes | {"train__num_steps": 2})
    shutil.rmtree(own / "checkpoints" / "30" / "params")  # not replaced by an older checkpoint
    message = "was trained with another base of its adapters: step 30"
    assert_refused({message: lambda: tj.load(run.workdir, base=own)})
    shutil.rmtree(own)
    language_model.with_params(jax.tree.map(lambda x: 2 * x, language_model.params)).save(own)
    assert_refused(
        {
            "was trained with another base of its adapters: ": lambda: tj.load(adapters),
            "trained with another base of its adapters: step": lambda: tj.train(more, adapters),
        }
    )
    shutil.rmtree(own)
    message = "adapters beside another run's parameters, and "
    assert_refused({message: lambda: tj.load(adapters), "not there": lambda: tj.load(adapters)})


def test_a_base_that_changes_while_it_is_loaded_is_not_mixed_in(
    language_model, run, tmp_path, meanwhile
):
    """A newer checkpoint appears after the provenance of the adapters was read."""
    own = shutil.copytree(language_model.workdir, tmp_path / "base")
    checkpoints = own / "checkpoints"
    meanwhile(lambda: shutil.copytree(checkpoints / "15", checkpoints / "45"))
    loaded = tj.load(run.workdir, base=own)
    assert (checkpoints / "45").exists()
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)


def test_what_does_not_go_with_adapters_is_refused(config, run, tmp_path):
    def train(**changes):
        return lambda: tj.train(config(**changes), tmp_path / "run")

    adapted = {"train__init_from": str(run.workdir)}
    assert_refused(
        {
            "does not go with optimizer.frozen": train(optimizer__frozen="embedding"),
            "lora.rank does not go with model.scan_layers": train(model__scan_layers=True),
            "parameters, but train.init_from names no run": train(train__init_from=None),
            "'nothing' matches the path of no linear": train(lora__targets="nothing"),
            "(train.init_from) has adapters itself; export it": train(**adapted),
        }
    )


def test_a_base_that_the_user_names_is_read(language_model, run, tmp_path, monkeypatch):
    workdir = with_fields(run.workdir, tmp_path / "run", {"train.init_from": "http://h/b"})
    loaded = tj.load(workdir, base=language_model.workdir)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)
    assert loaded.config.train.init_from == str(language_model.workdir)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"file://{language_model.workdir}"
    jax.tree.map(np.testing.assert_array_equal, tj.load(workdir, base=address).params, run.params)
    (tmp_path / "lines").write_text("The\n")
    words = ["score", f"--workdir={workdir}", f"--base={language_model.workdir}"]
    assert main([*words, *(f"--{one}={tmp_path / 'lines'}" for one in ("source", "target"))]) == 0
    assert "--base: x is not needed" in message_of(
        lambda: tj.load(language_model.workdir, base="x")
    )


def test_a_training_follows_what_its_config_names(config, language_model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"file://{language_model.workdir}"
    few = {"train__num_steps": 1, "train__init_from": address}
    assert tj.train(config(**few), tmp_path / "run").step == 1
    monkeypatch.delenv("TRANSFORMER_JAX_ALLOW_ADDRESSES")
    message = "is no address that may be used"
    assert_refused({message: lambda: tj.train(config(**few), tmp_path / "other")})


# --- Drafts ---


@pytest.fixture(scope="module")
def greedy(trained):
    return trained.n_best(TEXTS, search="greedy")


def test_greedy_outputs_are_those_of_the_run_alone(trained, trained_workdir, greedy, caplog):
    caplog.set_level(logging.INFO)
    for draft in (str(trained_workdir), "lookup"):
        found = trained.n_best(TEXTS, search="greedy", draft=draft, draft_length=3)
        for ours, theirs in zip(found, greedy, strict=True):
            assert ours[0].text == theirs[0].text
            assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-4)
    assert "tokens a step" in caplog.text
    # The run is a perfect draft of itself; only what the end of an output cuts off is lost.
    options = {"draft": str(trained_workdir), "draft_length": 3}
    decode = dataclasses.replace(trained.settings.decode, **options)
    assert trained.with_decoding(decode)[0].model.acceptance > 0.5


def test_one_beam_is_greedy_search_and_more_are_refused(trained, greedy):
    found = trained.predict(TEXTS, beam_size=1, draft="lookup", draft_length=3)
    assert found == [outputs[0].text for outputs in greedy]
    too_many = {"beam_size": 4, "draft": "lookup"}
    assert_refused(
        {
            "greedy search and sampling": lambda: trained.predict(TEXTS, **too_many),
            "draft_length does nothing": lambda: trained.predict(TEXTS, draft_length=3),
        }
    )


def test_a_draft_of_another_kind_or_vocabulary_is_refused(trained, old_workdir, tmp_path):
    def predict(name):
        return lambda: trained.predict(TEXTS, search="greedy", draft=str(tmp_path / name))

    for name in ("classification", "translation"):
        old_workdir(name)
    assert_refused(
        {
            "take one whose model is EncoderDecoder": predict("classification"),
            "has another vocabulary": predict("translation"),
            "missing": predict("missing"),
        }
    )


# --- Frozen trees of several runs ---


@dataclasses.dataclass(frozen=True)
class Runs:
    """Options of a task.

    Attributes:
      one: a run.
      two: another one.
    """

    one: str | None = None
    two: str | None = None


class Between(LanguageModeling):
    """Records how far apart two runs are."""

    def loss(self, params, batch, rng, frozen):
        loss, weight, sums = super().loss(params, batch, rng, frozen)
        apart = jax.tree.map(lambda a, b: abs(a - b).sum(), frozen["one"], frozen["two"])
        apart = sum(jax.tree.leaves(apart))
        return loss, weight, sums | {"aux/apart": apart, "aux_count/apart": 1.0}


def test_frozen_trees_of_the_runs_that_fields_name(
    language_model, tiny_language_model, workdir, tmp_path, with_entries
):
    run = language_model
    kind = TASKS["language_modeling"]

    class WithRuns(TaskKind):
        options = Runs

    def register(frozen):
        entry = WithRuns(Between.build, kind.texts, defaults=kind.defaults, frozen=frozen)
        with_entries(TASKS, {"between": entry})

    run.with_params(jax.tree.map(lambda x: 2 * x, run.params)).save(tmp_path / "twice")
    register({"one": "task.between.one", "two": "task.between.two"})
    changes = tiny_language_model | {"task.name": "between", "train.num_steps": 1}

    def trained(name="between", **runs):
        named = {f"task.between.{k}": str(v) for k, v in runs.items()}
        return tj.train(tj.config(QUICKSTART, changes | named), tmp_path / name)

    total = sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(run.params))
    metrics = trained(one=run.workdir, two=tmp_path / "twice").evaluate(split="valid")
    assert metrics["aux/apart"] == pytest.approx(total, rel=1e-4)
    no_run = "task.between.two names no run"
    vocabulary = "(task.between.two) has another vocabulary"
    assert_refused({no_run: lambda: trained("none", one=run.workdir)})
    assert_refused({vocabulary: lambda: trained("other", one=run.workdir, two=workdir)})
    register(("one", "two"))
    config = tj.config(QUICKSTART, changes | {"train.init_from": str(run.workdir)})
    message = "all of one run; name the config field of each: TaskKind(frozen={'one': 'task.between"
    assert_refused({message: lambda: tj.train(config, tmp_path / "both")})
