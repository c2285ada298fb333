# SPDX-License-Identifier: Apache-2.0
"""A run whose validation score stops rising: its learning rate is lowered, and it ends."""

import json
import logging

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, copy_at_step

CHANGES = {
    "model.dropout_rate": 0.0,
    "train.num_steps": 20,
    "eval.every_steps": 2,
    "logging.every_steps": 2,
    "checkpoint.every_steps": 4,
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 1e-12,
    "optimizer.warmup_steps": 1,
    "optimizer.plateau_patience": 1,
    "eval.patience": 3,
}


def records(workdir, split):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["split"] == split]


def test_it_ends_and_a_resumed_run_is_the_same(tiny_language_model, tmp_path, caplog):
    """So small a learning rate changes no loss."""
    caplog.set_level(logging.INFO)
    config = tj.config(QUICKSTART, tiny_language_model | CHANGES)
    run = tj.train(config, tmp_path / "whole")
    assert run.step == 8
    assert "training ends before step 9: 3 evaluations without a better score" in caplog.text
    assert len({one["loss"] for one in records(tmp_path / "whole", "valid")}) == 1
    assert len(records(tmp_path / "whole", "valid")) == 4
    rates = [one["learning_rate"] for one in records(tmp_path / "whole", "train")]
    assert rates == pytest.approx([1e-12, 1e-12, 5e-13, 2.5e-13], rel=1e-3, abs=0)

    copy_at_step(tmp_path / "whole", 4, tmp_path / "resumed")
    again = tj.train(config, tmp_path / "resumed")
    assert again.step == 8
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)

    caplog.clear()
    assert tj.train(config, tmp_path / "whole").step == 8
    told = "has ended at step 8, after 3 evaluations without a better score; raise eval.patience"
    assert told in caplog.text
