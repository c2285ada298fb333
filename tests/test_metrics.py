# SPDX-License-Identifier: Apache-2.0
"""Sums over tokens, and metrics computed from them."""

import math

import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.losses import token_losses, token_sums
from transformer_jax.metrics import add_sums, compute_metrics

# Four positions over three words; the third is padding.
PROBABILITIES = np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.9, 0.05, 0.05], [0.2, 0.2, 0.6]]])
LOGITS = (np.log(PROBABILITIES) + 5).astype(np.float32)
LABELS = np.array([[0, 2, 0, 2]])
WEIGHTS = np.array([[1, 1, 0, 1]], np.float32)


def test_sums_over_the_tokens_that_count():
    sums = run(lambda logits: token_sums(token_losses(logits, LABELS), WEIGHTS), LOGITS)
    assert {name: value.shape for name, value in sums.items()} == dict.fromkeys(sums, ())
    assert (sums["tokens"], sums["correct"]) == (3, 2)
    assert sums["nll"] == pytest.approx(-math.log(0.5 * 0.1 * 0.6), rel=1e-5)


def test_batches_add_up_in_double_precision():
    total = {}
    for _ in range(3):
        total = add_sums(total, {"tokens": np.float32(2**24), "nll": np.float32(0.5)})
    total = add_sums(total, {"tokens": np.float32(1), "nll": np.float32(0.25)})
    assert total == {"tokens": 3 * 2**24 + 1, "nll": 1.75}
    assert all(type(value) is np.float64 for value in total.values())


def test_sums_of_replicas_add_up_elementwise():
    sums = np.array([2**24, 0.5], np.float32)
    total = add_sums(add_sums({}, {"nll": sums}), {"nll": np.ones(2, np.float32)})
    assert total["nll"].tolist() == [2**24 + 1, 1.5]


def test_metrics_are_ratios_of_the_sums_that_there_are():
    sums = {"tokens": 4.0, "loss": 6.0, "filled": 15.0, "slots": 20.0}
    assert compute_metrics(sums) == {"loss": 1.5, "train_loss": 1.5, "padding": 0.25}
    more = {"nll": 4 * math.log(3), "correct": 1.0}
    expected = {"loss": math.log(3), "train_loss": 1.5, "perplexity": 3.0, "accuracy": 0.25}
    assert compute_metrics(sums | more) == pytest.approx(expected | {"padding": 0.25})
    diverged = {"tokens": 1.0, "nll": 1e4}
    assert compute_metrics(sums | diverged)["perplexity"] == pytest.approx(math.exp(700))
