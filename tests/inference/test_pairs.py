# SPDX-License-Identifier: Apache-2.0
"""Scoring of pairs: order, batch sizes and memory."""

import jax.numpy as jnp
import pytest

from transformer_jax.errors import UserError
from transformer_jax.inference.batches import score_pairs

PARAMS = {"scale": jnp.ones(1)}


def test_fewer_long_pairs_are_scored_at_once():
    rows = []

    def sum_of_targets(params, batch):
        rows.append(len(batch["target"]))
        total = batch["target"].sum(axis=1)
        return total, total > 5

    pairs = [{"source": [9], "target": [1] * length} for length in (3, 700, 1, 90, 5)]
    found = score_pairs(sum_of_targets, PARAMS, pairs, 4, row_bytes=lambda n: n << 20)
    assert found == [(3, False), (700, True), (1, False), (90, True), (5, False)]
    assert found[1].log_prob == 700 and found[1].is_greedy
    assert rows == [2, 4]  # 700 MiB each, then as many as are asked for


def test_a_pair_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("transformer_jax.runtime.platform.usable_memory", lambda: 2 << 30)
    pairs = [{"source": [9] * 12, "target": [9]}]
    with pytest.raises(UserError, match="score: a text of 12 tokens takes about 12 GiB of memory"):
        score_pairs(lambda *_: None, PARAMS, pairs, 4, row_bytes=lambda n: n << 30)
