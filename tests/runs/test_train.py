# SPDX-License-Identifier: Apache-2.0
"""A run in Python: trained, evaluated, used, and resumed."""

import json
import logging
import shlex
import shutil
import sys
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, dotted, records_of
from tests.refusals import assert_refused
from transformer_jax.checkpoints.step_folder import read_score, step_folders
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.lab.plan.program import compile_training_step
from transformer_jax.logs.records import OF_ONE_TRAINING
from transformer_jax.runs import build
from transformer_jax.runs.config import override, read_settings
from transformer_jax.runs.evaluate import validation
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.workdir import read_predictions
from transformer_jax.runtime import platform
from transformer_jax.training.optimizer import OPTIMIZERS, OptimizerKind

LINES = ["The dog sees a cat.", "", "The old teacher reads the new books."]


def assert_same_arrays(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.fixture
def text_workdir(language_model_workdir, tmp_path):
    """Copy of the language model's run."""
    return shutil.copytree(language_model_workdir, tmp_path / "run")


def test_the_config_says_whether_programs_must_be_reproducible(tiny_config, tmp_path, monkeypatch):
    def show(required):
        raise UserError(f"reproducible is {required}")

    monkeypatch.setattr(platform, "reproducible", show)
    for required in (True, False):
        settings = read_settings(tiny_config({"train.reproducible": required}))
        folder = tmp_path / str(required)
        seeds = seed_configs(settings, 2)
        for train in (
            lambda settings=settings, folder=folder: tj.train(settings, folder / "run"),
            lambda seeds=seeds, folder=folder: train_replicas(seeds, folder / "seeds"),
            lambda settings=settings: compile_training_step(settings, jax.devices()),
        ):
            with pytest.raises(UserError, match=f"reproducible is {required}"):
                train()


# --- Progress ---


def test_a_run_grows_and_tells_what_it_does_unless_unwanted(
    workdir, tiny_config, capsys, monkeypatch
):
    """In a program that configures no logging."""
    changes = {"train.num_steps": 32, "eval.num_examples": 1, "logging.every_steps": 1}
    config = tiny_config(changes)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    tj.train(config, workdir)
    told = capsys.readouterr().err.splitlines()
    for part in ("reading the training data", "examples in", "parameters", "compiling"):
        assert any(part in line for line in told), part
    assert any("step 32/32  loss " in line and " tokens/s  lr " in line for line in told)
    assert any("step 32/32  valid  loss " in line and "bleu" in line for line in told)
    assert "best bleu" in told[-1] and told[-1].endswith(str(workdir))
    assert ", on 1 of " in told[-1]
    finished = tj.train(config, workdir, progress=False)
    assert capsys.readouterr().err == "" and finished.step == 32
    assert [r["step"] for r in records_of(workdir)][-3:] == [31, 32, 32]
    assert json.loads((workdir / "config.json").read_text())["train"]["num_steps"] == 32
    assert_same_arrays(tj.load(workdir).params, finished.params)


def test_a_validation_scores_all_that_takes_one_pass(config_of_text, monkeypatch):
    counts = []
    monkeypatch.setattr(build, "build_evaluator", lambda *args: counts.append(args[-1]) or Mock())
    all_examples = override(read_settings(config_of_text()), {"eval.num_examples": None})
    few = override(all_examples, {"eval.num_examples": 7})
    validation(all_examples, Mock(decodes=True), None)
    validation(all_examples, Mock(decodes=False), None)
    validation(few, Mock(decodes=False), None)
    assert counts == [200, None, 7]


# --- Trained ---


def test_a_workdir_holds_the_whole_run(trained_workdir, trained):
    names = {path.name for path in trained_workdir.iterdir()}
    assert names >= {"config.json", "tokenizer", "checkpoints", "metrics.jsonl", "tensorboard"}
    kept = json.loads((trained_workdir / "config.json").read_text())
    assert kept["model"]["d_model"] == trained.config.model.d_model == 16
    train, valid = (records_of(trained_workdir, split) for split in ("train", "valid"))
    assert [record["step"] for record in train] == [5, 10, 15, 20, 25, 30]
    assert [record["step"] for record in valid] == [15, 30]
    assert train[0].keys() >= {
        *("loss", "perplexity", "accuracy", "grad_norm", "learning_rate", "padding"),
        *("tokens_per_s", "step_ms", "time", "xla_flops_per_s"),
    }
    assert "mfu" not in train[0]  # of accelerators alone
    assert valid[0].keys() >= {"bleu", "chrf", "signature", "loss", "perplexity", "accuracy"}
    assert valid[0]["num_examples"] == 3
    assert train[0]["loss"] - 0.2 > valid[0]["loss"] > valid[1]["loss"]  # it learns
    predictions = trained_workdir / "predictions" / "valid-30.jsonl"
    assert len(predictions.read_text().splitlines()) == 3


def test_a_run_starts_from_another_and_keeps_its_moving_average(
    language_model, config_of_text, tmp_path, caplog, with_entries
):
    """So does an optimizer that keeps the first parameters, here as what all updates lead to."""

    def anchored(config):
        def update(grads, anchor, params):
            return jax.tree.map(jnp.subtract, params, anchor), anchor

        return [optax.GradientTransformation(lambda params: params, update)]

    with_entries(OPTIMIZERS, {"anchored": OptimizerKind(anchored)})
    caplog.set_level(logging.INFO)
    changes = {"train.init_from": str(language_model.workdir), "optimizer.ema_decay": 0.9}
    changes |= {"train.num_steps": 2, "optimizer.name": "anchored", "optimizer.weight_decay": 0.0}
    run = tj.train(config_of_text(changes), tmp_path / "run")
    assert "parameter arrays loaded from" in caplog.text
    assert "copied the tokenizers of" in caplog.text
    assert_same_arrays(run.params, language_model.params)
    loaded = tj.load(tmp_path / "run")
    assert_same_arrays(loaded.params, run.params)
    assert loaded.predict(LINES[:1]) == language_model.predict(LINES[:1])


def test_a_start_of_other_sizes_is_refused_before_anything_is_compiled(
    language_model, config_of_text, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    start = str(language_model.workdir)
    saved = language_model.settings.model.d_ff
    message = f"train.init_from: {start} is of another model: config.model.d_ff is 48, and {saved}"

    def train(**changes):
        changes = {"model.d_ff": 48, "train.init_from": start} | changes
        return lambda: tj.train(config_of_text(changes), tmp_path / "run")

    for start_of in (train(), train(**{"lora.rank": 2})):
        assert_refused({message: start_of})
    assert "training" in caplog.text and "compiling" not in caplog.text


# --- Used ---


def test_predictions_are_texts_in_order(trained):
    texts = trained.predict(LINES)
    assert [type(text) for text in texts] == [str] * 3
    assert texts[1] == ""
    assert trained.predict(LINES[::-1]) == texts[::-1]
    assert trained.predict([]) == []


def test_decode_settings_that_cannot_be_used_are_refused(trained):
    too_many = "decode: beam_size is 801; the target vocabulary has 8"
    assert_refused(
        {
            "decode: beam_size is 0; it must lie": lambda: trained.predict(LINES, beam_size=0),
            "num_outputs is 5; it must be at most": lambda: trained.n_best(LINES, num_outputs=5),
            too_many: lambda: trained.predict(LINES, beam_size=801),
        }
    )


def test_a_run_reads_further_than_it_was_trained_to(trained, caplog):
    line = LINES[0]
    short = trained.with_config({"data.max_source_length": 4})
    assert short.predict([line]) != trained.predict([line])
    assert "line 1" in caplog.messages[0] and "max_source_length is 4" in caplog.messages[0]
    longer = short.with_config({"data.max_source_length": 200})
    assert longer.predict([line]) == trained.predict([line])
    assert trained.config.data.max_source_length == 48  # as it was
    assert longer.score([line * 12], ["Der Hund."])[0] < 0


def test_a_config_that_contradicts_the_parameters_is_refused(trained):
    learned = {"model.positions": "learned", "model.max_length": 9}
    other_model = "model.d_model: the run's parameters are of another model"
    assert_refused(
        {
            other_model: lambda: trained.with_config({"model.d_model": 32}),
            "mean config.data.max_length": lambda: trained.with_config({"data.max_lenght": 32}),
            "'learned' reach to max_length 9": lambda: trained.with_config(learned),
        }
    )


def test_an_evaluation_returns_metrics_and_writes_outputs(used):
    run, workdir = used, used.workdir
    program = 'import sys; n = len(list(sys.stdin)); print(\'{"lines": %d, "bleu": 999}\' % n)'
    command = shlex.join([sys.executable, "-c", program])
    metrics = run.evaluate(split="valid", command=command, beam_size=1)
    assert metrics["lines"] == 12
    assert metrics["bleu"] <= 100  # of its own name the run's own is kept
    assert metrics.keys() >= {
        *("bleu", "chrf", "signature", "loss", "perplexity", "accuracy"),
        *("step", "split", "num_examples"),
    }
    assert (metrics["step"], metrics["split"], metrics["num_examples"]) == (30, "valid", 12)
    last = records_of(workdir, "valid")[-1]
    for name in ("loss", "perplexity", "accuracy"):
        assert metrics[name] == pytest.approx(last[name], rel=1e-5)
    kept = [
        json.loads(line)
        for line in (workdir / "predictions" / "valid-30.jsonl").read_text().splitlines()
    ]
    examples = open_split(read_settings(run.config).data, "valid")
    pairs = [{side: one[side] for side in ("source", "target")} for one in kept]
    assert pairs == list(examples)
    assert [one["output"] for one in kept] == run.predict(
        [example["source"] for example in examples], beam_size=1
    )


def test_each_corpus_has_its_metrics_and_the_one_that_is_named_selects(
    tiny, tiny_language_model, tmp_path
):
    """The validation split is two files; one of them is the test split's."""
    of_test = {"data.test_text": tiny["data.test_source"]}
    files = f"{tiny_language_model['data.valid_text']},{tiny['data.test_source']}"
    both = {"data.valid_text": files, "eval.each_corpus": True, "eval.best_corpus": "test"}

    def config(changes):
        one_step = {"train.num_steps": 1}
        return tj.config(QUICKSTART, tiny_language_model | of_test | one_step | changes)

    run = tj.train(config(both), tmp_path / "run")
    (record,) = records_of(tmp_path / "run", "valid")
    alone = run.evaluate(split="test")
    for name in ("loss", "accuracy"):
        assert record[f"test/{name}"] == pytest.approx(alone[name], rel=1e-5)
    assert record["valid/loss"] != record["test/loss"] != record["loss"]
    score = read_score(step_folders(tmp_path / "run" / "checkpoints")[1])
    assert score == pytest.approx(-record["test/loss"], rel=1e-6)
    one_file = {"eval.each_corpus": True}
    unknown = both | {"eval.best_corpus": "x"}
    best_alone = {"eval.best_corpus": "test"}
    other = tmp_path / "other"
    assert_refused(
        {
            "'valid' of text is one corpus": lambda: tj.train(config(one_file), other),
            "'x', which is none of valid, test": lambda: tj.train(config(unknown), other),
            "best_corpus needs the metrics of each_corpus": lambda: config(best_alone),
        }
    )


def test_a_command_that_fails_and_outputs_that_cannot_be_written_cost_no_metric(used, caplog):
    predictions = used.workdir / "predictions"
    aside = predictions.rename(used.workdir / "aside")
    predictions.write_text("a file in the place of the folder")
    metrics = used.evaluate(split="valid", command="no-such-program", beam_size=1)
    assert "no scores by the command: 'no-such-program' cannot be run" in caplog.text
    assert "the outputs are not kept: " in caplog.text
    assert "bleu" in metrics and metrics["num_examples"] == 12
    predictions.unlink()
    aside.rename(predictions)


def test_a_run_may_be_used_with_rounded_weights(language_model):
    run = language_model
    exact = run.evaluate(split="valid")
    rounded = run.evaluate(split="valid", weights="int8")
    assert 0 < abs(rounded["loss"] / exact["loss"] - 1) < 0.01
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {np.dtype("float32")}
    message = "decode: weights is 'int4', not one of float32, int8"
    assert_refused({message: lambda: run.predict(LINES, weights="int4")})


def test_files_can_be_evaluated(used, tmp_path):
    (tmp_path / "a.en").write_text("The dog sees a cat.\n\nA man.\n")
    (tmp_path / "a.de").write_text("Der Hund sieht eine Katze.\n\nEin Mann.\n")
    files = {"source": str(tmp_path / "a.en"), "target": str(tmp_path / "a.de")}
    metrics = used.evaluate(**files, beam_size=1)
    name = metrics["split"]
    assert name.startswith("a.en-") and metrics["num_examples"] == 3
    made_by = read_predictions(used.workdir, name).made_by
    assert made_by["step"] == 30 and made_by["search"]["beam_size"] == 1
    assert "batch_size" not in made_by["search"]
    (tmp_path / "a.en").write_text("The dog sees.\n\nA man.\n")
    averaged = tj.load(used.workdir, average=2).with_config({"data.max_source_length": 20})
    other = averaged.evaluate(**files, beam_size=1)
    assert other["average"] == 2 and other["split"] != name
    other = read_predictions(used.workdir, other["split"]).made_by
    assert (other["average"], other["changed"]) == (2, {"data.max_source_length": 20})
    assert other["checkpoint"] == made_by["checkpoint"] and other["data"] != made_by["data"]
    assert_refused({"has no split 'tset'": lambda: used.evaluate(split="tset")})


# --- Resumed ---


def test_refusals_before_the_first_step(tiny_config, tmp_path):
    long = tmp_path / "long"
    long.write_text("The dog sees a cat and a dog. " * 30 + "\n")

    def train(**changes):
        return lambda: tj.train(tiny_config(dotted(changes)), tmp_path / "run")

    learned = {"model__positions": "learned", "model__max_length": 64}
    learned["decode__max_extra_length"] = 60
    assert_refused(
        {
            "train needs a folder": lambda: tj.train(tiny_config()),
            "stop": train(decode__stop="."),
            "lower decode.max_extra_length": train(**learned),
            "longer than": train(data__valid_target=str(long), data__valid_source=str(long)),
        }
    )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def untimed(workdir):
    return [
        {name: record[name] for name in record if not OF_ONE_TRAINING.search(name)}
        for record in records_of(workdir)
    ]


def test_a_run_that_failed_at_a_validation_and_paused_ends_as_one_that_did_not(
    language_model, config_of_text, tmp_path, monkeypatch
):
    whole, workdir = untimed(language_model.workdir), tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk"):
        fails = Mock(side_effect=OSError("the disk is gone"))
        patch.setattr("transformer_jax.runs.evaluate.write_predictions", fails)
        tj.train(config_of_text(), workdir)
    assert step_folders(workdir / "checkpoints").keys() == {15}
    assert tj.train(config_of_text(), workdir, until=15).step == 15
    assert untimed(workdir) == [record for record in whole if record["step"] <= 15]
    run = tj.train(config_of_text(), workdir, until=1000)
    assert_same_arrays(run.params, language_model.params)
    assert untimed(workdir) == whole
    scores, expected = (
        {step: read_score(folder) for step, folder in step_folders(path / "checkpoints").items()}
        for path in (workdir, language_model.workdir)
    )
    assert scores == expected and len(scores) == 2


def test_a_finished_run_is_evaluated_where_its_last_evaluation_did_not_end(
    text_workdir, language_model, config_of_text
):
    before, path = untimed(text_workdir), text_workdir / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert len(untimed(text_workdir)) == len(before) - 1
    run = tj.train(config_of_text(), text_workdir)
    assert untimed(text_workdir) == before
    assert_same_arrays(run.params, language_model.params)


def test_a_start_that_failed_does_not_claim_its_workdir(tmp_path, tiny_config, request):
    config = tiny_config({"train.tokens_per_batch": 40, "tokenizer.vocab_size": 200})
    message = "tokens_per_batch 40 has no room"
    assert_refused({message: lambda: tj.train(config, tmp_path / "run")})
    request.getfixturevalue("fitted")
    run = tj.train(tiny_config(), tmp_path / "run")
    assert run.tokenizer["source"].vocab_size == 800


def test_a_kernel_that_does_not_run_here_is_refused_by_its_name(text_workdir, config_of_text):
    changes = {"model.attention": "cudnn", "train.num_steps": 31}
    message = "attention is 'cudnn', but it runs on a gpu, and this"
    assert_refused({message: lambda: tj.train(config_of_text(changes), text_workdir)})
    run = tj.train(config_of_text(changes | {"model.attention": "plain"}), text_workdir)
    assert run.step == 31


def test_a_loss_that_is_not_finite_becomes_no_checkpoint(text_workdir, config_of_text):
    workdir = text_workdir
    changes = {"train.num_steps": 40, "checkpoint.every_steps": 1}
    settings = read_settings(config_of_text(changes))
    _, _, init_state = build.build_training(
        settings, tj.load(workdir).task, build.build_engine(settings)
    )
    with Checkpoints(workdir / "checkpoints", settings.checkpoint) as checkpoints:
        snapshot = checkpoints.snapshot(30)
        state = snapshot.state(jax.eval_shape(init_state, 0))
        huge = jax.tree.map(lambda leaf: leaf * 1e30, state.params)
        checkpoints.save(31, state.replace(step=state.step + 1, params=huge), snapshot.data_state)
    message = "not finite at step 32, which was not saved"
    assert_refused({message: lambda: tj.train(config_of_text(changes), workdir)})
    assert checkpoints.latest_step() == 31
    assert max(record["step"] for record in records_of(workdir)) == 30
