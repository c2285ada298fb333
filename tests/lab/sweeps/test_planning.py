# SPDX-License-Identifier: Apache-2.0
"""Plans of sweeps: what rows cost, what is finished and what remains."""

import pytest

import transformer_jax as tj
from tests.conftest import write_records
from transformer_jax.lab.sweeps.planning import SweepPlan, plan_sweep
from transformer_jax.lab.sweeps.results import encoded_result
from transformer_jax.lab.sweeps.tables import Row


def test_a_plan_counts_what_is_finished_and_trains_nothing(tiny_language_model, tmp_path):
    base = tiny_language_model | {"train.num_steps": 10}
    rows = {"small": {}, "wide": {"model.d_ff": 96}}
    sweep = tj.Sweep("quickstart", rows, base, seeds=2)
    finished = Row("small", {"loss": [1.0, 2.0]}, parameters=9, tokens_per_s=9.0, seconds=60.0)
    (tmp_path / "small").mkdir()
    asked = sweep.asked(sweep.configs()["small"])
    (tmp_path / "small" / "result.json").write_text(encoded_result(finished, asked))
    write_records(tmp_path / "wide" / "seed_1", {"step": 4, "split": "train", "loss": 1.0})
    before = sorted(tmp_path.rglob("*"))
    plan = plan_sweep(sweep, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    small, wide = plan.rows
    assert (small.finished, small.steps_left, small.seconds) == (2, 0, 60.0)
    assert (wide.finished, wide.steps, wide.steps_left) == (0, 20, 16)
    assert small.parameters < wide.parameters and 0 < small.flops < wide.flops
    assert small.memory > 4 * small.parameters and wide.tokens > 0
    expected = 60 * 16 * wide.flops / (20 * small.flops)
    assert plan.seconds_left([wide]) == pytest.approx(expected)
    text = plan.as_text()
    assert "2 of 2" in text and "16 of 20" in text and "2 of 4" in text
    alone = SweepPlan([wide])  # without a finished row
    assert alone.seconds_left([wide]) is None and "?" in alone.as_text()
