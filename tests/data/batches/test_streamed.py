"""Text in blocks, packed: each window once an epoch, for any number of processes, and from any
place on."""

import json

import jax
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.data.batches.pipeline import train_batches
from transformer_jax.data.batches.streamed import StreamedFeatures, StreamedText
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora
from transformer_jax.data.files.blocks import open_blocks
from transformer_jax.tasks.running_text import RunningText
from transformer_jax.tokenization import Tokenizers

BLOCKS = 11


def cut(documents):
    """A window for each document, which is a number."""
    return [{"input": np.array([int(text)] * 4, np.int32)} for text in documents]


def identity(features, rng):
    return features


@pytest.fixture
def text(tmp_path):
    """237 documents in eleven blocks of unequal size."""
    numbers = "".join(f"{i}\n" for i in range(1, 238))
    path = tmp_path / "numbers.txt"
    path.write_text(numbers)
    size = -(-len(numbers) // BLOCKS) / 2**20
    config = DataConfig(block_megabytes=max(size, 1e-4), documents="line")
    return StreamedText(open_blocks(config, [str(path)]), cut)


def walk(features, count, place=0):
    found = []
    for _ in range(count):
        found.append(int(features[place]["input"][0]))
        place = features.after(place)
    return found, place


def test_each_window_comes_once_an_epoch_in_a_new_order(text):
    features = StreamedFeatures(text, identity, seed=3)
    (first, place), order = walk(features, 237), sorted
    second, _ = walk(features, 237, place)
    assert order(first) == order(second) == list(range(1, 238))
    assert first != second
    assert walk(StreamedFeatures(text, identity, seed=3), 237)[0] == first
    assert walk(StreamedFeatures(text, identity, seed=4), 237)[0] != first


@pytest.mark.parametrize("hands", [2, 3, 8])
def test_hands_have_every_block_once_an_epoch_between_them(text, hands):
    whole = StreamedFeatures(text, identity, seed=0)
    # As many blocks for each hand as make whole epochs.
    found = []
    for hand in range(hands):
        dealt, place = whole.dealt(hand, hands), 0
        while place >> 32 < len(text):
            found.append(int(dealt[place]["input"][0]))
            place = dealt.after(place)
    assert sorted(found) == sorted(list(range(1, 238)) * hands)


def batches(text, shard=(0, 1), workers=0):
    lengths = {"input": 8}
    return train_batches(
        text, identity, lengths=lengths, rows=8, seed=1, shard=shard, num_workers=workers
    )


def taken(of, count):
    return [next(of)["input"].copy() for _ in range(count)]


def test_two_processes_and_worker_processes_have_the_same_batches(text):
    whole = taken(batches(text), 40)
    halves = zip(*(taken(batches(text, (i, 2)), 40) for i in range(2)), strict=True)
    for batch, parts in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(batch, np.concatenate(parts))
    by_workers = batches(text, workers=2)
    for batch, other in zip(whole, taken(by_workers, 40), strict=True):
        np.testing.assert_array_equal(batch, other)
    by_workers.close()


@pytest.mark.parametrize("done", [1, 17, 38])
def test_they_go_on_from_any_state(text, done):
    whole = taken(batches(text), 40)
    begun = batches(text)
    taken(begun, done)
    state = json.loads(json.dumps(begun.get_state()))
    resumed = batches(text)
    resumed.set_state(state)
    for batch, other in zip(whole[done:], taken(resumed, 40 - done), strict=True):
        np.testing.assert_array_equal(batch, other)


def test_a_run_on_blocks_goes_on_to_the_bit(tiny_config, tiny_language_model, tmp_path):
    changes = tiny_language_model | {
        "data.block_megabytes": 0.002,
        "train.num_steps": 8,
        "eval.every_steps": 8,
        "checkpoint.every_steps": 3,
    }
    whole = tj.train(tiny_config(changes), tmp_path / "whole")
    tj.train(tiny_config(changes | {"train.num_steps": 4}), tmp_path / "parts")
    again = tj.train(tiny_config(changes), tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, whole.params, again.params)


def test_weights_say_how_often_windows_of_each_corpus_come():
    """Two corpora of one letter each; the one with the higher weight is the shorter one."""

    class Letters:
        """Stands for a tokenizer."""

        class specials:
            eos = 2

        def encode(self, text):
            return [ord(letter) for letter in text]

    class Sides(Tokenizers):
        def text(self, side):
            return Letters()

    corpora = Corpora(([{"text": "a" * 400}], [{"text": "b" * 100}]), (1.0, 3.0))
    windows = RunningText("together").windows(corpora, Sides({}), first=2, length=10, training=True)
    made = train_batches(windows, identity, lengths={"input": 10, "target": 10}, rows=8, seed=0)
    letters = np.concatenate([next(made)["input"].ravel() for _ in range(100)])
    ratio = (letters == ord("b")).sum() / (letters == ord("a")).sum()
    assert ratio == pytest.approx(3, rel=0.1)
