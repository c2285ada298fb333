# SPDX-License-Identifier: Apache-2.0
"""Runs are loaded from their workdirs, wherever these are, and from one checkpoint each."""

import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.checkpoints import store

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


def test_a_checkpoint_that_is_not_there(trained_workdir):
    with pytest.raises(
        tj.UserError, match="no checkpoint 7 in .*; take latest, best, or of 15, 30"
    ):
        tj.load(trained_workdir, checkpoint=7)
    with pytest.raises(tj.UserError, match="cannot average 3 checkpoints"):
        tj.load(trained_workdir, average=3)


def test_a_moved_run_predicts_the_same(workdir, trained):
    moved = workdir.rename(workdir.with_name("elsewhere"))
    assert tj.load(moved).predict(LINES) == trained.predict(LINES)


def test_loading_changes_nothing(workdir):
    def listing():
        return {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}

    before = listing()
    tj.load(workdir).predict(LINES[:1])
    assert listing() == before


def test_no_run_and_no_checkpoint(workdir, tmp_path):
    with pytest.raises(tj.UserError, match="absent holds no run: config.json is missing"):
        tj.load(tmp_path / "absent")
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(tj.UserError, match="no checkpoint in .*; train there first"):
        tj.load(workdir)


@pytest.fixture
def meanwhile(monkeypatch):
    """`meanwhile(change)`: calls `change` once, after the provenance of a checkpoint was read."""

    def meanwhile(change):
        read, changes = store.read_provenance, [change]

        def read_and_change(folder):
            provenance = read(folder)
            if changes:
                changes.pop()()
            return provenance

        monkeypatch.setattr(store, "read_provenance", read_and_change)

    return meanwhile


@pytest.mark.parametrize("average", [None, 2])
def test_a_checkpoint_that_appears_meanwhile_is_not_mixed_in(workdir, meanwhile, average):
    expected = tj.load(workdir, average=average)
    checkpoints = workdir / "checkpoints"
    meanwhile(lambda: shutil.copytree(checkpoints / "15", checkpoints / "31"))
    run = tj.load(workdir, average=average)
    assert run.step == 30 and (checkpoints / "31").exists()
    jax.tree.map(np.testing.assert_array_equal, run.params, expected.params)


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_replaced_by_another(workdir, meanwhile):
    meanwhile(lambda: shutil.rmtree(workdir / "checkpoints" / "30"))
    with pytest.raises(tj.UserError, match="30/params cannot be read"):
        tj.load(workdir)
    assert tj.load(workdir).step == 15
