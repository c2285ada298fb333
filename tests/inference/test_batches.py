# SPDX-License-Identifier: Apache-2.0
"""Scores of pairs: order, sizes and memory."""

import functools

import jax.numpy as jnp

from tests.refusals import assert_refused
from transformer_jax.inference.batches import score_pairs
from transformer_jax.nn.config import TransformerConfig

PARAMS = {"scale": jnp.ones(1)}


def config(vocab_size):
    """Config of a model that needs 16 * `vocab_size` bytes a token, and few for its attention."""
    return TransformerConfig(num_heads=1, target_vocab_size=vocab_size)


def test_fewer_long_pairs_are_scored_at_once():
    rows = []

    def sum_of_targets(params, batch):
        rows.append(len(batch["target"]))
        total = batch["target"].sum(axis=1)
        return total, total > 5

    pairs = [{"source": [9], "target": [1] * length} for length in (3, 700, 1, 90, 5)]
    found = score_pairs(sum_of_targets, PARAMS, pairs, 4, config(1 << 16))
    assert found == [(3, False), (700, True), (1, False), (90, True), (5, False)]
    assert found[1].log_prob == 700 and found[1].is_greedy
    assert rows == [2, 4]  # 700 MiB each, then as many as are asked for


def test_a_pair_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr("transformer_jax.runtime.platform.usable_memory", lambda: 2 << 30)
    pairs = [{"source": [9] * 12, "target": [9]}]
    score = functools.partial(score_pairs, None, PARAMS, pairs, 4, config(1 << 26))
    assert_refused({"score: a text of 12 tokens takes about 12 GiB of memory": score})
