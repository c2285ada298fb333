# SPDX-License-Identifier: Apache-2.0
"""Rows of a sweep that differ only in numbers train in one program. (Each as if it trained alone:
runs/test_seeds.py.)"""

import contextlib
import dataclasses

import pytest

import transformer_jax as tj
from tests.conftest import records_of
from transformer_jax.lab.sweeps import row_training
from transformer_jax.lab.sweeps import sweep as sweeps
from transformer_jax.lab.sweeps.results import encoded_result
from transformer_jax.lab.sweeps.row_training import group_rows
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.lab.sweeps.tables import Row

ROWS = {
    "base": {},
    "no dropout": {"model.dropout_rate": 0.0},
    "slow": {"optimizer.learning_rate": 1e-3},
    "dropped": {"model.dropout_rate": 0.3, "optimizer.learning_rate": 2e-3},
}


@pytest.fixture
def sweep(tiny_language_model):
    steps = {"train.num_steps": 6, "eval.every_steps": 3, "checkpoint.every_steps": 2}
    base = tiny_language_model | steps | {"logging.every_steps": 1, "model.dropout_rate": 0.1}
    rows = {name: ROWS[name] for name in ("base", "dropped")}
    return tj.Sweep("quickstart", rows, base, seeds=1)


def test_rows_of_a_stopped_program_continue_where_they_were(sweep, tmp_path, monkeypatch):
    workdir = tmp_path / "sweep"
    train = row_training.train_replicas

    def stop(configs, folder, modules, until, folders):
        train(configs, folder, modules, 2, folders)
        raise tj.Stopped("stopped by SIGTERM at step 2")

    more = dataclasses.replace(sweep, rows=sweep.rows | {"never reached": {"model.d_ff": 48}})
    with monkeypatch.context() as patch:
        patch.setattr(row_training, "train_replicas", stop)
        with pytest.raises(tj.Stopped):
            tj.sweep(more, workdir)
    assert not (workdir / "table.txt").exists() and not list(workdir.glob("never*/*"))
    rows = tj.sweep(more, workdir, chosen="base|dropped")
    assert [row.name for row in rows] == ["base", "dropped"]
    for row, rate in zip(rows, (0.1, 0.3), strict=True):
        seed = workdir / row.name / "seed_0"
        splits = [(record["split"], record["step"]) for record in records_of(seed)]
        trained = [("train", step) for step in range(1, 7)]
        assert splits == [*trained[:3], ("valid", 3), *trained[3:], ("valid", 6)]
        assert row.metrics["loss"] == [records_of(seed, "valid")[-1]["loss"]]
        run = tj.load(seed)
        assert run.config.model.dropout_rate == rate and run.step == 6


@pytest.mark.parametrize(
    "seeds, at_once, sizes", [(1, 8, [3, 1]), (2, 4, [2, 1, 1]), (3, 2, [1] * 4)]
)
def test_rows_are_grouped(sweep, seeds, at_once, sizes):
    groups = group_rows(dataclasses.replace(sweep, rows=ROWS).configs(), seeds, at_once)
    assert [len(group) for group in groups] == sizes
    assert groups[0] == ["base", "slow", "dropped"][: sizes[0]]


def test_a_row_that_is_busy_elsewhere_is_left_out_later(sweep, tmp_path, monkeypatch):
    """At first the others wait: the other process may be about to claim them too."""
    trained = []

    def train_rows(sweep, rows, at_once, modules):
        trained.append([spec.name for spec in rows.values()])
        for folder, spec in rows.items():
            row = Row(spec.name, {"loss": [1.0]}, parameters=1, tokens_per_s=1.0, seconds=1.0)
            result = encoded_result(row, sweep.asked(spec.settings))
            (folder / "result.json").write_text(result)

    monkeypatch.setattr(sweeps, "train_rows", train_rows)
    with contextlib.ExitStack() as other:
        other.enter_context(SweepFolder(tmp_path).claim("slow"))
        monkeypatch.setattr(SweepFolder, "wait_for", lambda *_: other.close())
        rows = tj.sweep(dataclasses.replace(sweep, rows=ROWS, seeds=1), tmp_path)
    assert trained == [["no dropout"], ["base", "dropped"], ["slow"]]
    assert [row.name for row in rows] == [*ROWS]
