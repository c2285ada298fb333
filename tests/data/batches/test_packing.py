# SPDX-License-Identifier: Apache-2.0
"""Rows of batches, packed and padded."""

import numpy as np
import pytest

from transformer_jax.data.batches.loss_masks import LossMaskedTexts
from transformer_jax.data.batches.order import OrderedFeatures, OrderedSlices, endless_order
from transformer_jax.data.batches.packing import (
    LENGTH_STEP,
    Packer,
    padded_batch,
)
from transformer_jax.data.batches.token_cache import TokenPairs
from transformer_jax.data.batches.windows import (
    DocumentPieces,
    TokenSlices,
    Windows,
    find_slices,
    store_token_stream,
)
from transformer_jax.data.examples import Corpora
from transformer_jax.errors import UserError


def pair(source, target):
    return {"source": np.array(source, np.int32), "target": np.array(target, np.int32)}


def unchanged(example, rng):
    return example


def packed(examples, lengths, rows):
    ordered = OrderedFeatures(examples, range(len(examples)), unchanged, seed=0)
    return Packer(ordered, lengths, rows).pack(0)


def test_packed_rows_are_these_arrays():
    examples = [
        pair([11, 12], [21, 22, 23]),
        pair([13, 14, 15], [24, 25]),  # its target does not fit into row 0
        pair([16], [26]),  # the first row with room, not the last used
        pair([17, 18, 19], [27]),  # fits into no row: the group ends
    ]
    group = packed(examples, {"source": 5, "target": 4}, rows=2)
    assert (group.end, group.overlong) == (3, 0)
    expected = {
        "source": [[11, 12, 16, 0, 0], [13, 14, 15, 0, 0]],
        "source_segment_ids": [[1, 1, 2, 0, 0], [1, 1, 1, 0, 0]],
        "source_positions": [[0, 1, 0, 0, 0], [0, 1, 2, 0, 0]],
        "target": [[21, 22, 23, 26], [24, 25, 0, 0]],
        "target_segment_ids": [[1, 1, 1, 2], [1, 1, 0, 0]],
        "target_positions": [[0, 1, 2, 0], [0, 1, 0, 0]],
    }
    assert group.arrays.keys() == expected.keys()
    for key, literal in expected.items():
        np.testing.assert_array_equal(group.arrays[key], literal, err_msg=key)
        assert group.arrays[key].dtype == np.int32


@pytest.mark.parametrize(
    ("source", "target", "overlong"), [(3, 2, 0), (4, 1, 1), (1, 3, 1), (4, 3, 1)]
)
def test_an_overlong_example_is_longer_than_a_row_on_any_side(source, target, overlong):
    examples = [pair([1] * source, [1] * target), pair([1], [1])]
    assert packed(examples, {"source": 3, "target": 2}, rows=2).overlong == overlong


def test_features_are_those_of_a_row_and_have_tokens():
    with pytest.raises(ValueError, match="no token"):
        packed([pair([], [1])], {"source": 3, "target": 3}, rows=1)
    with pytest.raises(ValueError, match="got features .*source.*expected .*tokens"):
        packed([{"source": [1], "tokens": [1]}], {"tokens": 3}, rows=1)


def test_a_padded_batch_has_the_arrays_of_a_packed_one():
    batch = padded_batch([{"source": [4, 3], "target": [3]}, {"source": [3], "target": [5, 6, 3]}])
    assert set(batch) == {
        f + s for f in ("source", "target") for s in ("", "_segment_ids", "_positions")
    }
    np.testing.assert_array_equal(batch["target_segment_ids"].sum(axis=1), [1, 3])
    np.testing.assert_array_equal(batch["target"][1, :3], [5, 6, 3])
    np.testing.assert_array_equal(batch["source_positions"][0], np.arange(LENGTH_STEP))
    assert all(array.dtype == np.int32 for array in batch.values())


SIZES = {"source": 12, "target": 10}


def cached_pairs(rng):
    """A task's pairs of which a tenth is overlong, with the slices of their features."""
    frames = {"source": ((), (3,)), "target": ((5,), (3,))}
    streams = {}
    slices = {}
    for side, (head, tail) in frames.items():
        texts = [rng.integers(10, 99, rng.integers(0, 11)).tolist() for _ in range(120)]
        stream = store_token_stream(texts, first=3, end=3)
        streams[side] = stream
        slices[side] = TokenSlices(stream.tokens, stream.document_ranges, head=head, tail=tail)

    def preprocess(pair, rng):
        parts = {side: (head, pair[side], tail) for side, (head, tail) in frames.items()}
        return {side: np.concatenate(part).astype(np.int32) for side, part in parts.items()}

    return TokenPairs(streams), preprocess, slices


def stream(rng):
    sizes = rng.integers(0, 30, 150)
    return store_token_stream([rng.integers(10, 99, size) for size in sizes], first=3, end=3)


def of_items(items):
    return items, unchanged, find_slices(items, lambda part: part.slices)


SOURCES = {
    "cached pairs": cached_pairs,
    "windows": lambda rng: of_items(Windows(stream(rng).tokens, 10, 7)),
    "documents": lambda rng: of_items(DocumentPieces(stream(rng), 10)),
    "texts with a loss mask": lambda rng: of_items(
        LossMaskedTexts.from_texts(
            (rng.integers(10, 99, size), (rng.random(size) < 0.5).tolist())
            for size in rng.integers(2, 13, 150)
        )
    ),
    "a mixture": lambda rng: of_items(
        Corpora(
            (DocumentPieces(stream(rng), 10), Windows(stream(rng).tokens, 6, 6)), weights=(1, 2)
        )
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_slices_are_packed_as_examples_are(source):
    """The last groups are of the second epoch."""
    items, preprocess, slices = SOURCES[source](np.random.default_rng(0))
    lengths = {name: SIZES.get(name, 10) for name in slices}
    order = endless_order(items, 1)
    examples = OrderedFeatures(items, order, preprocess, 1).shard(1, 2)
    sliced = OrderedSlices(items, order, preprocess, 1, slices=slices).shard(1, 2)
    start = num_overlong = 0
    while start < len(items):
        expected = Packer(examples, lengths, 8).pack(start)
        group = Packer(sliced, lengths, 8).pack(start)
        assert (group.end, group.overlong) == (expected.end, expected.overlong)
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(group.arrays[name], array)
            assert group.arrays[name].dtype == array.dtype
        start = group.end
        num_overlong += group.overlong
    assert num_overlong > 0 or source in ("windows", "documents", "a mixture")
    with pytest.raises(UserError, match=f"each of the {len(items)} examples is longer than a row"):
        Packer(sliced, dict.fromkeys(lengths, 0), 8).pack(0)
