# SPDX-License-Identifier: Apache-2.0
"""Rows of batches, packed and padded."""

import dataclasses

import numpy as np
import pytest

from transformer_jax.data.batches.order import OrderedFeatures, endless_order
from transformer_jax.data.batches.packing import (
    LENGTH_STEP,
    PackedRows,
    Packer,
    pad_rows,
    padded_batch,
    rounded_length,
)
from transformer_jax.data.batches.token_cache import CachedPairs
from transformer_jax.data.batches.windows import FramedDocuments, store_token_stream
from transformer_jax.errors import UserError


def pair(source, target):
    return {"source": np.array(source, np.int32), "target": np.array(target, np.int32)}


def test_packed_rows_are_these_arrays():
    rows = PackedRows({"source": 5, "target": 4}, rows=2)
    assert rows.add(pair([11, 12], [21, 22, 23]))
    assert rows.add(pair([13, 14, 15], [24, 25]))  # its target does not fit into row 0
    assert rows.add(pair([16], [26]))  # the first row with room, not the last used
    assert len(rows) == 3
    packed = rows.arrays()
    expected = {
        "source": [[11, 12, 16, 0, 0], [13, 14, 15, 0, 0]],
        "source_segment_ids": [[1, 1, 2, 0, 0], [1, 1, 1, 0, 0]],
        "source_positions": [[0, 1, 0, 0, 0], [0, 1, 2, 0, 0]],
        "target": [[21, 22, 23, 26], [24, 25, 0, 0]],
        "target_segment_ids": [[1, 1, 1, 2], [1, 1, 0, 0]],
        "target_positions": [[0, 1, 2, 0], [0, 1, 0, 0]],
    }
    assert packed.keys() == expected.keys()
    for key, literal in expected.items():
        np.testing.assert_array_equal(packed[key], literal, err_msg=key)
        assert packed[key].dtype == np.int32


def test_an_example_that_does_not_fit_leaves_the_rows_unchanged():
    rows = PackedRows({"source": 3, "target": 3}, rows=1)
    rows.add(pair([1, 2], [3]))
    before = rows.arrays()
    assert not rows.add(pair([4, 5], [6]))
    for key, array in rows.arrays().items():
        np.testing.assert_array_equal(array, before[key])
    assert rows.add(pair([4], [5, 6]))  # fills the row to the last slot
    assert (rows.arrays()["target_segment_ids"] == [[1, 2, 2]]).all()


@pytest.mark.parametrize(
    ("source", "target", "overlong"), [(3, 2, False), (4, 1, True), (1, 3, True), (4, 3, True)]
)
def test_an_overlong_example_is_longer_than_a_row_on_any_side(source, target, overlong):
    rows = PackedRows({"source": 3, "target": 2}, rows=1)
    assert rows.is_overlong(pair([1] * source, [1] * target)) == overlong


def test_a_feature_without_tokens_is_rejected():
    with pytest.raises(ValueError, match="no token"):
        PackedRows({"source": 3, "target": 3}, rows=1).add(pair([], [1]))


def test_unexpected_features_are_rejected():
    with pytest.raises(ValueError, match="got features .*source.*expected .*tokens"):
        PackedRows({"tokens": 3}, rows=1).add({"source": np.array([1]), "tokens": np.array([1])})


def test_short_rows_are_padded_with_zeros():
    np.testing.assert_array_equal(pad_rows([[7], [8, 9, 3]], 4), [[7, 0, 0, 0], [8, 9, 3, 0]])
    with pytest.raises(ValueError):
        pad_rows([[1, 2, 3]], 2)


@pytest.mark.parametrize(("longest", "steps"), [(1, 1), (LENGTH_STEP, 1), (LENGTH_STEP + 1, 2)])
def test_lengths_are_rounded_up(longest, steps):
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


def test_documents_are_packed_as_examples_are():
    """A tenth of the pairs is overlong; the last groups are of the second epoch."""
    rng = np.random.default_rng(0)
    lengths = {"source": 12, "target": 10}
    frames = {"source": ((), (3,)), "target": ((5,), (3,))}
    streams = {}
    for side in lengths:
        texts = [rng.integers(10, 99, rng.integers(0, 11)).tolist() for _ in range(120)]
        streams[side] = store_token_stream(texts, first=3, end=3)
    pairs = CachedPairs(streams)

    def preprocess(pair, rng):
        parts = {side: (head, pair[side], tail) for side, (head, tail) in frames.items()}
        return {side: np.concatenate(part).astype(np.int32) for side, part in parts.items()}

    documents = {side: FramedDocuments(streams[side], *frames[side]) for side in lengths}
    examples = OrderedFeatures(pairs, endless_order(pairs, 1), preprocess, 1).shard(1, 2)
    epoch = dataclasses.replace(examples, order=range(len(pairs)), first=0, step=1)
    fast = dataclasses.replace(examples, documents=documents)
    start = num_overlong = 0
    for _ in range(6):
        expected = Packer(examples, epoch, lengths, 8).pack(start)
        group = Packer(fast, epoch, lengths, 8).pack(start)
        assert (group.end, group.overlong) == (expected.end, expected.overlong)
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(group.arrays[name], array)
            assert group.arrays[name].dtype == array.dtype
        start = group.end
        num_overlong += group.overlong
    assert num_overlong > 3 and start > 60
    short = dict.fromkeys(lengths, 1)
    with pytest.raises(UserError, match="each of the 120 examples is longer than a row"):
        Packer(fast, epoch, short, 8).pack(0)
