# SPDX-License-Identifier: Apache-2.0
"""Records of earlier versions, whose "loss" was what training minimizes."""

import math

import pytest

from transformer_jax.logs.records import with_losses

SMOOTHED = {"label_smoothing": 0.1, "loss": "cross_entropy"}
OLD = {"step": 1, "split": "valid", "loss": 2.0, "perplexity": math.e, "de/loss": 3.0}


@pytest.mark.parametrize(
    ("train", "record", "expected"),
    [
        (SMOOTHED, OLD, {"loss": 1.0, "train_loss": 2.0, "de/train_loss": 3.0, "de/loss": None}),
        ({"loss": "distillation"}, OLD, {"loss": 1.0, "train_loss": 2.0}),
        ({"label_smoothing": 0.0, "r_drop": 0.0}, OLD, {"loss": 2.0, "train_loss": None}),
        (SMOOTHED, {"loss": 2.0, "accuracy": 0.5}, {"loss": None, "train_loss": 2.0}),
        (SMOOTHED, {"loss": 1.0, "train_loss": 2.0}, {"loss": 1.0, "train_loss": 2.0}),
    ],
)
def test_the_loss_is_that_of_the_data(train, record, expected):
    before = dict(record)
    read = with_losses(record, train)
    assert {name: read.get(name) for name in expected} == expected
    assert record == before
