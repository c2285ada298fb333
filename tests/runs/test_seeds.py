# SPDX-License-Identifier: Apache-2.0
"""Replicas trained together equal the runs trained one by one."""

import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, copy_at_step, dotted, records_of
from tests.refusals import assert_refused
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.runs.config import read_settings, resolve
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.settings import COMMAND

STEPS = 8
NUMBERS = {
    "optimizer.weight_decay": 0.01,
    "train.label_smoothing": 0.1,
    "model.dropout_rate": 0.05,
    "model.attention_dropout_rate": 0.05,
    "model.feed_forward_dropout_rate": 0.05,
}


@pytest.fixture(scope="module", autouse=True)
def peak():
    """That of an accelerator, so that records have its utilization."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.training.profiling.peak_flops", lambda *_: 1e9)
        yield


@pytest.fixture(scope="module")
def config(tiny_language_model):
    steps = {"train.num_steps": STEPS, "eval.every_steps": 2, "checkpoint.every_steps": 4}
    steps |= {"logging.watch_steps": 4, "optimizer.plateau_patience": 1}
    steps |= {"model.scan_layers": True}
    # A stable rate: chaos would magnify rounding.
    others = {"logging.every_steps": 1, "optimizer.learning_rate": 0.04, "optimizer.name": "adamw"}
    return tj.config(QUICKSTART, tiny_language_model | steps | others | NUMBERS)


def changed(config, **values):
    return resolve(config, dotted(values), (), COMMAND)


@pytest.fixture(scope="module")
def three(config):
    """Two seeds, and a third run with the second seed and other numbers."""
    others = {name.replace(".", "__"): 3 * value for name, value in NUMBERS.items()}
    others["model__embedding_dropout_rate"] = 0.1  # that of the others is the dropout rate
    seeds = seed_configs(config, 2)
    return seeds | {"fast": changed(seeds["seed_1"], optimizer__learning_rate=0.08, **others)}


@pytest.fixture(scope="module")
def together(three, tmp_path_factory):
    """The workdir of the three, and the runs."""
    workdir = tmp_path_factory.mktemp("together")
    return workdir, train_replicas(three, workdir)


def values(workdir, name, split="train"):
    return [record[name] for record in records_of(workdir, split)]


def losses(workdir, split="train"):
    return values(workdir, "loss", split)


def assert_same_arrays(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.fixture(scope="module")
def alone(three, tmp_path_factory):
    """The workdir of the third run, trained by itself for two steps more."""
    folder = tmp_path_factory.mktemp("alone") / "fast"
    tj.train(changed(three["fast"], train__num_steps=STEPS + 2), folder)
    return folder


def test_a_replica_is_the_run_that_its_config_makes(three, together, alone):
    workdir, runs = together
    expected = losses(alone)[:STEPS]
    assert len(expected) == STEPS
    np.testing.assert_allclose(losses(workdir / "fast"), expected, rtol=1e-5)
    valid = losses(alone, "valid")[: STEPS // 2]
    assert losses(workdir / "fast", "valid") == pytest.approx(valid, rel=1e-5)
    assert values(workdir / "fast", "batches") == values(alone, "batches")[:STEPS]
    rates = values(alone, "learning_rate")[:STEPS]
    assert values(workdir / "fast", "learning_rate") == pytest.approx(rates)
    of_group, of_run = (
        values(folder, "mfu")[1] * values(folder, "step_ms")[1]
        for folder in (workdir / "fast", alone)
    )
    assert of_group == pytest.approx(len(three) * of_run)
    of_group, of_run = (records_of(folder, "watch")[-1] for folder in (workdir / "fast", alone))
    for name in of_run.keys() - {"split", "time", "sha256"}:
        assert of_group[name] == pytest.approx(of_run[name], rel=1e-3, abs=1e-5), name
    for name, run in runs.items():
        assert run.settings.values == read_settings(three[name]).values


def test_replicas_differ(together):
    workdir, _ = together
    first, second, fast = (losses(workdir / name) for name in ("seed_0", "seed_1", "fast"))
    assert first[0] != second[0]
    assert second[0] == pytest.approx(fast[0], rel=1e-2)  # the same seed, before any update
    assert second[-1] != pytest.approx(fast[-1], rel=1e-3)


def test_each_replica_leaves_a_whole_workdir(together):
    workdir, runs = together
    loaded = tj.load(workdir / "fast")
    assert loaded.step == runs["fast"].step == STEPS
    assert loaded.params["decoder"].keys() == {"layer_0", "final_norm"}  # though it is scanned
    assert_same_arrays(loaded.params, runs["fast"].params)
    assert len(loaded.predict(["The dog "])) == 1
    checkpoints = Checkpoints(workdir / "fast" / "checkpoints", loaded.settings.checkpoint)
    assert {"training data", "tokenizer of text"} <= checkpoints.snapshot().provenance.keys()


def test_replicas_are_resumed_together_bit_for_bit(three, together, tmp_path):
    workdir, runs = together
    group = shutil.copytree(workdir, tmp_path / "group")
    shutil.rmtree(group / "together")
    copy_at_step(workdir / "together", STEPS // 2, group / "together")
    for name in three:
        shutil.rmtree(group / name / "checkpoints")  # which are saved at the end
    resumed = train_replicas(three, group)
    for name in three:
        assert losses(group / name) == losses(workdir / name)
        assert_same_arrays(resumed[name].params, runs[name].params)


def test_a_finished_group_is_not_trained_again(three, together):
    workdir, runs = together
    before = (workdir / "fast" / "metrics.jsonl").read_bytes()
    again = train_replicas(three, workdir)
    assert (workdir / "fast" / "metrics.jsonl").read_bytes() == before
    assert_same_arrays(again["fast"].params, runs["fast"].params)


def test_a_replica_goes_on_alone(three, together, alone, tmp_path):
    """Its workdir has the state of optimizer and data."""
    workdir, _ = together
    own = shutil.copytree(workdir / "fast", tmp_path / "own")
    tj.train(changed(three["fast"], train__num_steps=STEPS + 2), own)
    np.testing.assert_allclose(losses(own), losses(alone), rtol=1e-3)


def test_seeds_of_one_order_share_their_batches(three, tmp_path, monkeypatch):
    """In the order of seed 1, whose batches so are those that it has alone."""
    first_batches = []

    def read_a_batch(replicas, *_):
        first_batches.append(next(replicas.batches(4)))
        raise tj.Stopped("not trained")

    monkeypatch.setattr("transformer_jax.runs.seeds.fit", read_a_batch)
    alone = {"seed_1": three["seed_1"]}
    shared = {name: changed(three[name], data__order_seed=1) for name in ("seed_0", "seed_1")}
    for number, configs in enumerate((alone, shared)):
        with pytest.raises(tj.Stopped):
            train_replicas(configs, tmp_path / str(number))
    assert_same_arrays(*first_batches)


def test_what_cannot_train_together_is_refused(config, three, together, tmp_path):
    workdir, _ = together
    narrow = changed(config, model__d_model=32)
    patient = {"0": changed(config, eval__patience=2)}
    rewound = {"0": changed(config, train__on_spike="rewind")}
    alone = {"seed_0": three["seed_0"]}
    other = three | {"fast": changed(three["fast"], seed=9)}
    wider = {"0": config, "1": narrow}
    apart = "config.eval.patience ends each at another step: train"
    another = "its seed is 1, the config's is 9"
    assert_refused(
        {
            "1 differs from 0 in config.model": lambda: train_replicas(wider, tmp_path),
            apart: lambda: train_replicas(patient, tmp_path),
            "'rewind' takes each back to a": lambda: train_replicas(rewound, tmp_path),
            "fast, seed_0, seed_1 trained together": lambda: train_replicas(alone, workdir),
            another: lambda: train_replicas(other, workdir),
            "holds together, and no mark": lambda: tj.train(config, workdir),
            "name one of them: fast, seed_0, seed_1": lambda: tj.load(workdir),
        }
    )


def test_runs_trained_one_by_one_are_not_overwritten(config, alone, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(alone, workdir / "seed_0")
    kept = (workdir / "seed_0" / "config.json").read_bytes()
    with pytest.raises(tj.UserError, match="seed_0 holds a run that was trained by itself"):
        train_replicas(seed_configs(changed(config, model__d_ff=48), 2), workdir)
    with pytest.raises(tj.UserError, match="seed_0 holds a run that was trained by itself"):
        train_replicas(seed_configs(config, 2), workdir / "seed_0")
    assert (workdir / "seed_0" / "config.json").read_bytes() == kept
    assert {path.name for path in workdir.iterdir()} == {"seed_0"}
