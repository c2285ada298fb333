"""Losses on pairs: R-Drop against its equation."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.models.apply import apply
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.training.config import TrainConfig

SIZES = {"source": 12, "target": 12}
BATCH = padded_batch(
    [{"source": [5, 6, 3], "target": [7, 8, 9, 3]}, {"source": [4, 3], "target": [10, 3]}],
    {"source": 4, "target": 5},
)


@pytest.fixture(scope="module")
def losses(tiny_config):
    changes = {"train.r_drop": 4.0, "train.label_smoothing": 0.1, "model.dropout_rate": 0.3}
    settings = read_settings(tiny_config({**changes, "model.d_model": 8, "model.d_ff": 8}))
    return build.build_task(settings, SIZES, None).losses


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def test_r_drop_is_the_mean_of_two_losses_and_their_divergence(losses):
    params, key = losses.init(jax.random.key(0)), jax.random.key(1)
    twice = {name: np.repeat(rows, 2, axis=0) for name, rows in BATCH.items()}
    logits = np.asarray(apply(losses.model, params, *losses._inputs(twice), rng=key), np.float64)
    p, q = softmax(logits[::2]), softmax(logits[1::2])
    right = np.eye(12)[BATCH["target"]] * 0.9 + 0.1 / 12
    entropy = -(right * (np.log(p) + np.log(q)) / 2).sum(axis=-1)
    apart = (p * np.log(p / q)).sum(axis=-1) + (q * np.log(q / p)).sum(axis=-1)
    counted = BATCH["target_segment_ids"] > 0
    assert (apart[counted] > 1e-4).all()  # dropout differs in the two copies of each row
    loss, weight, sums = losses(params, BATCH, key)
    assert (weight, sums["tokens"]) == (6, 6)
    assert loss == pytest.approx(((entropy + apart) * counted).sum(), rel=1e-5)  # 4 / 4 of it


def test_without_dropout_r_drop_changes_nothing(losses):
    params = losses.init(jax.random.key(0))
    options = dataclasses.replace(losses.options, r_drop=0.0)
    plain = dataclasses.replace(losses, options=options)
    for one, other in zip(losses(params, BATCH, None), plain(params, BATCH, None), strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_r_drop_wants_whole_distributions():
    with pytest.raises(ValueError, match=r"r_drop is 5\.0, .* loss_tiles is 2; leave one out"):
        TrainConfig(r_drop=5.0, loss_tiles=2)
