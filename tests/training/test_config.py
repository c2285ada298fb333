# SPDX-License-Identifier: Apache-2.0
"""Division of a batch into rows, devices and micro-batches."""

import pytest

from transformer_jax.training.config import TrainConfig


def test_rows_fill_the_tokens_of_a_batch_and_divide_into_micro_batches():
    assert TrainConfig(tokens_per_batch=1000).rows(48) == 20
    assert TrainConfig(tokens_per_batch=1000, accumulation_steps=3).rows(48) == 18
    with pytest.raises(ValueError, match="tokens_per_batch 1000 has no room for 30 rows of 48"):
        TrainConfig(tokens_per_batch=1000, accumulation_steps=30).rows(48)


def test_rows_per_device_determine_the_number_of_micro_batches():
    train = TrainConfig(tokens_per_batch=1000, rows_per_device=3)
    assert [train.rows(48, shards) for shards in (1, 2, 6)] == [18] * 3
    assert [train.micro_batches(48, shards) for shards in (1, 2, 6)] == [6, 3, 1]
    with pytest.raises(ValueError, match="4 devices cannot share equally at 3 rows each; set it"):
        train.micro_batches(48, 4)
    assert TrainConfig(tokens_per_batch=24 * 48, rows_per_device=3).micro_batches(48, 4) == 2
    with pytest.raises(ValueError, match="has no room for 30 rows of 48"):
        TrainConfig(tokens_per_batch=1000, rows_per_device=30).rows(48)
    assert TrainConfig(tokens_per_batch=1000, accumulation_steps=3).micro_batches(48, 6) == 3
    with pytest.raises(ValueError, match="rows_per_device is 3, but accumulation_steps 2 already"):
        TrainConfig(accumulation_steps=2, rows_per_device=3)
