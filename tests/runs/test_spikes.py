# SPDX-License-Identifier: Apache-2.0
"""A run whose gradient spikes returns to its last checkpoint and continues with other data."""

import json
import logging

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import copy_at_step
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.errors import UserError

CHANGES = {
    "train.num_steps": 32,
    "train.on_spike": "rewind",
    "train.spike_factor": 2.0,
    "eval.every_steps": 32,
    "logging.every_steps": 1,
    "checkpoint.every_steps": 6,
}
SPIKED = 27


@pytest.fixture
def tiny_config(tiny_config, tiny_language_model):
    """`tiny_config(changes)`: of a language model, whose programs compile in half the time."""
    return lambda changes: tiny_config(tiny_language_model | changes)


@pytest.fixture
def spike_at(monkeypatch):
    """`spike_at(n, ...)`: one token counts in these batches: no mean dampens its gradient."""

    def spike(*numbers):
        rows_of, batches = TrainBatches.__next__, [0]

        def counted(self):
            rows = dict(rows_of(self))
            batches[0] += 1
            if batches[0] in numbers:
                segments = np.zeros_like(rows["target_segment_ids"])
                segments[0, :1] = 1
                rows["target_segment_ids"] = segments
            return rows

        monkeypatch.setattr(TrainBatches, "__next__", counted)
        return batches

    return spike


def steps_of(workdir, split="train"):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [one["step"] for one in lines if one["split"] == split]


def test_it_continues_from_its_last_checkpoint_with_the_data_after_the_spike(
    tiny_config, tmp_path, spike_at, caplog
):
    batches = spike_at(SPIKED)
    run = tj.train(tiny_config(CHANGES), tmp_path / "run")
    assert f"the gradient spiked at step {SPIKED}; training goes back to step 24" in caplog.text
    assert run.step == 32
    assert steps_of(run.workdir) == list(range(1, 33))
    assert batches[0] == SPIKED + 8  # steps 25 to 32 have batches of their own


def test_before_the_first_checkpoint_it_starts_again(tiny_config, tmp_path, spike_at, caplog):
    spike_at(25)
    changes = {"checkpoint.every_steps": 32, "train.num_steps": 26}
    run = tj.train(tiny_config(CHANGES | changes), tmp_path / "run")
    assert "training goes back to step 0" in caplog.text
    assert steps_of(run.workdir) == list(range(1, 27))


def test_it_ends_if_all_data_spikes(tiny_config, tmp_path, spike_at):
    spike_at(*range(SPIKED, 200))
    with pytest.raises(UserError, match="for the 11th time after step 24, each time with other"):
        tj.train(tiny_config(CHANGES), tmp_path / "run")


def test_skipped_steps_leave_the_run_as_it_was(tiny_config, tmp_path, spike_at):
    spike_at(SPIKED)
    changes = {"train.on_spike": "skip", "train.num_steps": SPIKED, "checkpoint.every_steps": 26}
    tj.train(tiny_config(CHANGES | changes | {"checkpoint.keep_params": 3}), tmp_path / "run")
    before, after = (
        tj.load(tmp_path / "run", checkpoint=step).params for step in (SPIKED - 1, SPIKED)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_resumed_run_may_start_or_stop_spike_detection(tiny_config, language_model, tmp_path):
    """Between its steps 15 and 24 it detects spikes, of which there are none."""
    often = {"logging.every_steps": 1}
    detected = {"train.on_spike": "skip", "train.spike_factor": 2.0}
    copy_at_step(language_model.workdir, 15, tmp_path / "run")
    assert tj.train(tiny_config(often | detected), tmp_path / "run", until=24).step == 24
    run = tj.train(tiny_config(often), tmp_path / "run")
    assert run.step == 30
    jax.tree.map(np.testing.assert_array_equal, run.params, language_model.params)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    skipped = {one["step"]: one.get("skipped") for one in lines if one["split"] == "train"}
    assert [skipped[step] for step in (15, 16, 24, 25)] == [None, 0, 0, None]


def test_a_spike_factor_without_detection_is_refused(tiny_config, tmp_path):
    with pytest.raises(UserError, match="spike_factor is 2.0, but on_spike is 'apply'"):
        tj.train(tiny_config({"train.spike_factor": 2.0}), tmp_path / "run")


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO)
