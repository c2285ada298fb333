# SPDX-License-Identifier: Apache-2.0
"""Token streams and windows of running text, in memory and in blocks."""

import errno
import json
import tempfile
import tracemalloc
from functools import partial

import numpy as np
import pytest

from transformer_jax.data.batches.order import BlockFeatures, WindowedBlocks, endless_order
from transformer_jax.data.batches.pipeline import train_batches
from transformer_jax.data.batches.windows import (
    DocumentPieces,
    TokenStream,
    Windows,
    store_token_stream,
)
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Parsed
from transformer_jax.data.files.text import open_blocks
from transformer_jax.errors import UserError
from transformer_jax.tasks.language_modeling import DocumentWindows
from transformer_jax.tokenization import Tokenizers

SEP = 1
DOCUMENTS = [[10, 11, 12, 13], [20], [], [30, 31, 32, 33, 34, 35, 36]]


@pytest.fixture
def stream() -> TokenStream:
    return store_token_stream(DOCUMENTS, SEP, SEP)


def test_a_stream_has_a_separator_before_and_after_each_document(stream):
    expected = [1, 10, 11, 12, 13, 1, 20, 1, 1, 30, 31, 32, 33, 34, 35, 36, 1]
    assert stream.tokens.tolist() == expected and stream.tokens.dtype == np.int32
    assert stream.starts.tolist() == [0, 5, 7, 8] and stream.starts.dtype == np.int64
    assert stream.ends.tolist() == [5, 7, 8, 16] and stream.ends.dtype == np.int64
    from_arrays = store_token_stream(
        (np.array(tokens, np.uint16) for tokens in DOCUMENTS), SEP, SEP
    )
    assert from_arrays.tokens.tolist() == expected


def test_the_first_tokens_of_a_stream(stream):
    first = stream.first(6)  # ends within the second document
    assert first.tokens.tolist() == [1, 10, 11, 12, 13, 1, 20]
    pieces = [shifted(piece) for piece in DocumentPieces(first, 10)]
    assert pieces == [[1, 10, 11, 12, 13, 1], [1, 20]]
    for count in range(1, 17):
        first = stream.first(count)
        assert first.tokens.tolist() == stream.tokens[: count + 1].tolist()
        targets = [piece["target"] for piece in DocumentPieces(first, 3)]
        assert np.concatenate(targets).tolist() == first.tokens[1:].tolist()
    with pytest.raises(UserError, match="num_train_tokens is 17, but the training text has 16 tok"):
        stream.first(17)


def test_pieces_do_not_predict_a_first_token_other_than_the_end():
    stream = store_token_stream(DOCUMENTS[:3], 5, SEP)
    assert stream.tokens.tolist() == [5, 10, 11, 12, 13, 1, 5, 20, 1, 5, 1]
    assert (stream.starts.tolist(), stream.ends.tolist()) == ([0, 6, 9], [5, 8, 10])
    pieces = [shifted(piece) for piece in DocumentPieces(stream, 3)]
    assert pieces == [[5, 10, 11, 12], [12, 13, 1], [5, 20, 1], [5, 1]]


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_a_stream_without_a_token_is_an_error(documents):
    with pytest.raises(UserError, match="the text is empty"):
        store_token_stream(documents, SEP, SEP)


def test_a_full_disk_is_a_user_error_and_other_failures_are_not(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))
    with pytest.raises(UserError, match="No space left on device; set TMPDIR"):
        store_token_stream([range(100_000)], SEP, SEP)

    def broken():
        yield [2]
        raise OSError(errno.EIO, "while reading documents")

    monkeypatch.undo()
    with pytest.raises(OSError, match="while reading documents"):
        store_token_stream(broken(), SEP, SEP)


def test_a_stream_may_be_larger_than_the_memory_allowed():
    """Stores 8 MB of tokens with less than 2 MB of memory; `tracemalloc` counts no memory maps."""
    document = np.arange(50_000, dtype=np.int32)
    tracemalloc.start()
    try:
        stream = store_token_stream((document for _ in range(40)), 0, 0)
        windows = Windows(stream.tokens, 1000, 1000)
        assert len(stream.tokens) == 2_000_041 and windows[-1]["target"][-1] == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def shifted(item) -> list[int]:
    """Tokens of an item; checks that its target is its input shifted by one."""
    assert item["input"].dtype == item["target"].dtype == np.int32
    assert item["input"][1:].tolist() == item["target"][:-1].tolist()
    return [*item["input"].tolist(), int(item["target"][-1])]


@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("length, stride", [(1, 1), (4, 1), (4, 3), (4, 4), (5, 5)])
def test_windows_begin_at_each_stride_until_one_has_the_last_token(size, length, stride):
    tokens = np.arange(size, dtype=np.int32)
    windows = [shifted(window) for window in Windows(tokens, length, stride)]
    expected = [tokens[i : i + length + 1].tolist() for i in range(0, size, stride)]
    assert windows == expected[: len(windows)]
    has_last = [size - 1 in window for window in windows]
    assert has_last == [False] * (len(windows) - 1) + [True]


@pytest.mark.parametrize("length", [1, 2, 4, 100])
def test_each_token_and_each_end_is_a_target_exactly_once(stream, length):
    pieces = DocumentPieces(stream, length)
    targets = [token for piece in pieces for token in piece["target"].tolist()]
    assert targets == [token for tokens in DOCUMENTS for token in [*tokens, SEP]]
    assert all(1 <= len(piece["input"]) <= length for piece in pieces)
    assert pieces.ranges(0)[0].dtype == np.int64
    # A separator begins an input, if it is in one at all.
    assert all(SEP not in piece["input"][1:] for piece in pieces)
    assert shifted(pieces[-1]) == shifted(pieces[len(pieces) - 1])


def document_of(stream, index):
    return stream.tokens[slice(*stream.document_ranges(index))].tolist()


def test_blocks_of_whole_documents_have_each_document_once(stream):
    blocks = stream.blocks(4, whole_documents=True)
    assert len(blocks) > 1
    found = [document_of(block, i) for block in blocks for i in range(len(block.starts))]
    assert found == [[*document] for document in DOCUMENTS]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_blocks_of_any_tokens_have_each_target_once(stream, size):
    blocks = stream.blocks(size, whole_documents=False)
    targets = [token for block in blocks for token in block.tokens[1:].tolist()]
    assert targets == stream.tokens[1:].tolist()
    assert all(2 <= len(block.tokens) <= size + 1 for block in blocks)


@pytest.mark.parametrize("first", [SEP, 5])
def test_a_resegmented_stream_has_the_same_documents(first):
    def twice(tokens):
        return [token for each in tokens for token in [each] * (1 + (each >= 10))]

    stream = store_token_stream(DOCUMENTS, first, SEP)
    other = stream.resegmented(twice)
    assert other.tokens.tolist() == twice(stream.tokens.tolist())
    for i, document in enumerate(DOCUMENTS):
        assert document_of(other, i) == twice(document)
        assert other.tokens[other.starts[i]] == (first if i == 0 or first == 5 else SEP)
        assert other.tokens[other.ends[i]] == SEP


NUM_BLOCKS = 11


def cut(documents, rng):
    """One window for each document, which is a number."""
    return [{"input": np.array([int(text)] * 4, np.int32)} for text in documents]


def identity(features, rng):
    return features


@pytest.fixture
def text(tmp_path):
    """Text of 237 documents in eleven blocks of unequal size."""
    numbers = "".join(f"{i}\n" for i in range(1, 238))
    path = tmp_path / "numbers.txt"
    path.write_text(numbers)
    size = -(-len(numbers) // NUM_BLOCKS) / 2**20
    config = DataConfig(block_megabytes=max(size, 1e-4), documents="line")
    blocks = open_blocks(config, [str(path)])
    return WindowedBlocks(Parsed(range(len(blocks)), blocks.documents), cut)


def block_features(text, seed):
    return BlockFeatures(text, endless_order(text, seed), identity, seed)


def walk(features, count, index=0):
    found = []
    for _ in range(count):
        found.append(int(features[index]["input"][0]))
        index = features.next_index(index)
    return found, index


def test_each_epoch_has_each_window_once_in_a_new_order(text):
    features = block_features(text, seed=3)
    first, index = walk(features, 237)
    second, _ = walk(features, 237, index)
    assert sorted(first) == sorted(second) == list(range(1, 238))
    assert first != second
    assert walk(block_features(text, seed=3), 237)[0] == first
    assert walk(block_features(text, seed=4), 237)[0] != first


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_have_each_block_once_per_epoch_in_total(text, count):
    whole = block_features(text, seed=0)
    found = []
    for i in range(count):
        shard, index = whole.shard(i, count), 0
        while index >> 32 < len(text):  # `count` epochs in total
            found.append(int(shard[index]["input"][0]))
            index = shard.next_index(index)
    assert sorted(found) == sorted(list(range(1, 238)) * count)


def batches(text, shard=(0, 1), workers=0):
    lengths = {"input": 8}
    return train_batches(
        text, identity, lengths=lengths, rows=8, seed=1, shard=shard, num_workers=workers
    )


def taken(of, count):
    return [next(of)["input"].copy() for _ in range(count)]


def test_batches_of_blocks_are_the_same_for_any_number_of_processes(text):
    whole = taken(batches(text), 40)
    halves = zip(*(taken(batches(text, (i, 2)), 40) for i in range(2)), strict=True)
    for batch, parts in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(batch, np.concatenate(parts))
    by_worker = batches(text, workers=1)
    for batch, other in zip(whole, taken(by_worker, 40), strict=True):
        np.testing.assert_array_equal(batch, other)
    by_worker.close()


@pytest.mark.parametrize("done", [1, 17, 38])
def test_batches_of_blocks_resume_from_any_state(text, done):
    whole = taken(batches(text), 40)
    begun = batches(text)
    taken(begun, done)
    state = json.loads(json.dumps(begun.get_state()))
    resumed = batches(text)
    resumed.set_state(state)
    for batch, other in zip(whole[done:], taken(resumed, 40 - done), strict=True):
        np.testing.assert_array_equal(batch, other)


@pytest.mark.parametrize("sampling", [0.0, 0.5])
def test_windows_are_drawn_by_the_weights_of_their_corpora(sampling, monkeypatch):
    """Each corpus is one repeated letter; the shorter one has the higher weight. Text whose tokens
    are drawn is mixed in blocks."""
    monkeypatch.setattr("transformer_jax.tasks.language_modeling.SAMPLED_BLOCK", 200)

    class Letters:
        class specials:
            eos = 2

        def encode(self, text):
            return [ord(letter) for letter in text]

    class Sides(Tokenizers):
        def text(self, side):
            return Letters()

    corpora = Corpora(([{"text": "a" * 1400}], [{"text": "b" * 100}]), (1.0, 3.0))
    sides = Sides({}, sampling=sampling)
    windows = DocumentWindows("together", first=2, length=10).cut(corpora, sides, training=True)
    made = train_batches(windows, identity, lengths={"input": 10, "target": 10}, rows=8, seed=0)
    letters = np.concatenate([next(made)["input"].ravel() for _ in range(400)])
    ratio = (letters == ord("b")).sum() / (letters == ord("a")).sum()
    assert ratio == pytest.approx(3, rel=0.1)
