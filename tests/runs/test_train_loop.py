# SPDX-License-Identifier: Apache-2.0
"""Training that cannot fit into memory, that ends when its score stops rising, and whose gradient
spikes."""

import logging

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import copy_at_step, records_of
from tests.refusals import assert_refused
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.errors import UserError

PATIENT = {"model.dropout_rate": 0.0, "train.num_steps": 20, "eval.every_steps": 2}
PATIENT |= {"logging.every_steps": 2, "checkpoint.every_steps": 100}
PATIENT |= {"optimizer.learning_rate": 1e-12, "optimizer.schedule": "constant"}
PATIENT |= {"optimizer.warmup_steps": 1, "optimizer.plateau_patience": 1, "eval.patience": 3}
SPIKING = {"train.num_steps": 32, "train.on_spike": "rewind", "train.spike_factor": 2.0}
SPIKING |= {"eval.every_steps": 32, "logging.every_steps": 1, "checkpoint.every_steps": 12}
SPIKED = 27


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO)


def steps_of(workdir):
    return [record["step"] for record in records_of(workdir, "train")]


def test_a_step_that_cannot_fit_is_refused(tiny_config, tmp_path):
    large = {"model.d_model": 65_536, "model.d_ff": 2**20, "model.num_heads": 64}
    for changes in (large, {"train.tokens_per_batch": 10**9}):
        config = tiny_config(changes)
        assert_refused({"GiB; this machine has": lambda c=config: tj.train(c, tmp_path / "run")})


def test_micro_batches_need_less_memory_however_they_are_set(tiny_config, tmp_path, monkeypatch):
    needed = []

    def note(nbytes, what):
        needed.append(nbytes)
        raise UserError(what)

    monkeypatch.setattr("transformer_jax.runs.train.require_memory", note)
    for changes in ({}, {"train.accumulation_steps": 4}, {"train.rows_per_device": 1}):  # of 4 rows
        with pytest.raises(UserError, match="train.tokens_per_batch 192"):
            tj.train(tiny_config(changes), tmp_path / f"run-{len(needed)}")
    assert needed[0] > needed[1] == needed[2]


def test_outputs_that_cannot_fit_are_refused(trained):
    much = {"max_extra_length": 2**20, "batch_size": 2**20, "beam_size": 500}
    message = "the state of 1048576 sources, 500 outputs and"
    assert_refused({message: lambda: trained.predict(["the old man"], **much)})


def test_without_patience_it_ends_and_a_resumed_run_is_the_same(config_of_text, tmp_path, caplog):
    """So small a learning rate changes no loss: it is lowered, and the run ends."""
    config = config_of_text(PATIENT)
    run = tj.train(config, tmp_path / "whole")
    assert run.step == 8
    assert "training ends before step 9: 3 evaluations without a better score" in caplog.text
    losses = [record["loss"] for record in records_of(tmp_path / "whole", "valid")]
    assert losses == [losses[0]] * 4
    rates = [one["learning_rate"] for one in records_of(tmp_path / "whole", "train")]
    assert rates == pytest.approx([1e-12, 1e-12, 5e-13, 2.5e-13], rel=1e-3, abs=0)

    copy_at_step(tmp_path / "whole", 4, tmp_path / "resumed")
    again = tj.train(config, tmp_path / "resumed")
    assert again.step == 8
    jax.tree.map(np.testing.assert_array_equal, run.params, again.params)

    caplog.clear()
    assert tj.train(config, tmp_path / "whole").step == 8
    told = "has ended at step 8, after 3 evaluations without a better score; raise eval.patience"
    assert told in caplog.text


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


def test_it_continues_from_its_last_checkpoint_with_the_data_after_the_spike(
    config_of_text, tmp_path, spike_at, caplog
):
    batches = spike_at(SPIKED)
    run = tj.train(config_of_text(SPIKING), tmp_path / "run")
    assert f"the gradient spiked at step {SPIKED}; training goes back to step 24" in caplog.text
    assert run.step == 32
    assert steps_of(run.workdir) == list(range(1, 33))
    assert batches[0] == SPIKED + 8  # steps 25 to 32 have batches of their own


def test_before_the_first_checkpoint_it_starts_again(config_of_text, tmp_path, spike_at, caplog):
    spike_at(25)
    changes = {"checkpoint.every_steps": 32, "train.num_steps": 26}
    run = tj.train(config_of_text(SPIKING | changes), tmp_path / "run")
    assert "training goes back to step 0" in caplog.text
    assert steps_of(run.workdir) == list(range(1, 27))


def test_it_ends_if_all_data_spikes(config_of_text, tmp_path, spike_at):
    spike_at(*range(SPIKED, 200))
    alone = {"train.spike_factor": 2.0}
    message = "for the 11th time after step 24, each time with other"
    assert_refused(
        {
            message: lambda: tj.train(config_of_text(SPIKING), tmp_path / "run"),
            "spike_factor is 2.0, but on_spike is 'apply'": lambda: config_of_text(alone),
        }
    )


def test_skipped_steps_leave_the_run_as_it_was(config_of_text, tmp_path, spike_at):
    spike_at(SPIKED)
    changes = {"train.on_spike": "skip", "train.num_steps": SPIKED, "checkpoint.every_steps": 26}
    tj.train(config_of_text(SPIKING | changes | {"checkpoint.keep_params": 3}), tmp_path / "run")
    before, after = (
        tj.load(tmp_path / "run", checkpoint=step).params for step in (SPIKED - 1, SPIKED)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_resumed_run_may_start_or_stop_spike_detection(config_of_text, language_model, tmp_path):
    """Between its steps 15 and 24 it detects spikes, of which there are none."""
    often = {"logging.every_steps": 1}
    detected = {"train.on_spike": "skip", "train.spike_factor": 2.0}
    copy_at_step(language_model.workdir, 15, tmp_path / "run")
    assert tj.train(config_of_text(often | detected), tmp_path / "run", until=24).step == 24
    run = tj.train(config_of_text(often), tmp_path / "run")
    assert run.step == 30
    jax.tree.map(np.testing.assert_array_equal, run.params, language_model.params)
    skipped = {one["step"]: one.get("skipped") for one in records_of(tmp_path / "run", "train")}
    assert [skipped[step] for step in (15, 16, 24, 25)] == [None, 0, 0, None]
