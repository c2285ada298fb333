"""Rows of unequal length as arrays of few shapes."""

import numpy as np
import pytest

from transformer_jax.data.batches.padding import LENGTH_STEP, pad_rows, padded_batch, rounded_length


def test_rows_are_filled_up_with_padding():
    np.testing.assert_array_equal(pad_rows([[7], [8, 9, 3]], 4), [[7, 0, 0, 0], [8, 9, 3, 0]])
    with pytest.raises(ValueError):
        pad_rows([[1, 2, 3]], 2)


@pytest.mark.parametrize(("longest", "steps"), [(1, 1), (LENGTH_STEP, 1), (LENGTH_STEP + 1, 2)])
def test_lengths_are_few(longest, steps):
    assert rounded_length([[5], [5] * longest]) == steps * LENGTH_STEP


def test_a_padded_batch_has_the_arrays_of_a_packed_one():
    batch = padded_batch([{"source": [4, 3], "target": [3]}, {"source": [3], "target": [5, 6, 3]}])
    assert set(batch) == {
        f + s for f in ("source", "target") for s in ("", "_segment_ids", "_positions")
    }
    np.testing.assert_array_equal(batch["target_segment_ids"].sum(axis=1), [1, 3])
    np.testing.assert_array_equal(batch["target"][1, :3], [5, 6, 3])
    np.testing.assert_array_equal(batch["source_positions"][0], np.arange(LENGTH_STEP))
    assert all(array.dtype == np.int32 for array in batch.values())
