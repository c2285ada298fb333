# SPDX-License-Identifier: Apache-2.0
"""Division of a batch into rows, devices and micro-batches."""

from functools import partial

from tests.refusals import assert_refused
from transformer_jax.training.config import TrainConfig

Batch = partial(TrainConfig, tokens_per_batch=1000)


def test_rows_fill_the_tokens_of_a_batch_and_divide_into_micro_batches():
    assert Batch().rows(48) == 20
    assert Batch(accumulation_steps=3).rows(48) == 18
    assert Batch(accumulation_steps=3).micro_batches(48, 6) == 3


def test_rows_per_device_determine_the_number_of_micro_batches():
    train = Batch(rows_per_device=3)
    assert [train.rows(48, shards) for shards in (1, 2, 6)] == [18] * 3
    assert [train.micro_batches(48, shards) for shards in (1, 2, 6)] == [6, 3, 1]
    assert TrainConfig(tokens_per_batch=24 * 48, rows_per_device=3).micro_batches(48, 4) == 2


def test_batches_that_cannot_be_divided_are_refused():
    assert_refused(
        {
            "tokens_per_batch 1000 has no room for 30 rows of 48": lambda: Batch(
                accumulation_steps=30
            ).rows(48),
            "4 devices cannot share equally at 3 rows each; set it": lambda: Batch(
                rows_per_device=3
            ).micro_batches(48, 4),
            "rows_per_device is 3, but accumulation_steps 2 already": lambda: TrainConfig(
                accumulation_steps=2, rows_per_device=3
            ),
        }
    )
