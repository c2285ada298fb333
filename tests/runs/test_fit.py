# SPDX-License-Identifier: Apache-2.0
"""A config that cannot fit into memory is refused before anything is allocated."""

import pytest

import transformer_jax as tj
from transformer_jax.errors import UserError
from transformer_jax.runs import fit


def test_a_step_that_cannot_fit_is_refused(tiny_config, tmp_path, message_of):
    large = {"model.d_model": 65_536, "model.d_ff": 2**20, "model.num_heads": 64}
    for changes in (large, {"train.tokens_per_batch": 10**9}):
        message = message_of(tj.train, tiny_config(changes), tmp_path / "run")
        assert message.startswith("config: ")
        assert "train.tokens_per_batch" in message and "GiB; this machine has" in message


def test_micro_batches_need_less_memory_however_they_are_set(tiny_config, tmp_path, monkeypatch):
    needed = []

    def note(nbytes, what):
        needed.append(nbytes)
        raise UserError(what)

    monkeypatch.setattr(fit, "require_memory", note)
    for changes in ({}, {"train.accumulation_steps": 4}, {"train.rows_per_device": 1}):  # of 4 rows
        with pytest.raises(UserError, match="train.tokens_per_batch 192"):
            tj.train(tiny_config(changes), tmp_path / f"run-{len(needed)}")
    assert needed[0] > needed[1] == needed[2]


def test_outputs_that_cannot_fit_are_refused(trained):
    much = {"max_extra_length": 2**20, "batch_size": 2**20, "beam_size": 500}
    message = "the state of 1048576 sources, 500 outputs and .* tokens need at least"
    with pytest.raises(UserError, match=message):
        trained.predict(["the old man"], **much)
