# SPDX-License-Identifier: Apache-2.0
"""Masked language modeling: masking, the loss, and filled blanks."""

import numpy as np
import pytest

from tests.compiled import run
from tests.tasks import compiled
from transformer_jax.data.batches.order import IndexedRng
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import cross_entropy
from transformer_jax.tasks.masked_lm import (
    ScheduledMasks,
    fill_blanks,
    restore_beyond,
)
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers
from transformer_jax.tokenization.specials import BOS, EOS, MASK

TEXT = {"text": "the old man sees a dog .\nthe dog sees the old man .\n"}
MODEL = {"model.architecture": "encoder_only", "model.num_token_types": 2}
WHOLE_WORDS = {"task.whole_words": True, "task.mask_rate": 0.3, "data.max_length": 64}
WHOLE_WORDS |= {"model.max_length": 64}


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    def build(kind="wordpiece", **fields):
        return task_with(tokenizers_of(kind), "masked_lm", MODEL, **fields)

    return build


def masked_many_times(task, texts=(TEXT,), times=400):
    example = task.prepare(texts, training=False)[0]
    plain = np.array([BOS, *example["input"], EOS])
    found = [task.preprocess(example, np.random.default_rng(i)) for i in range(times)]
    assert all(set(one) == {"text", "labels"} for one in found)
    return plain, np.array([one["text"] for one in found]), np.array([o["labels"] for o in found])


def test_most_chosen_tokens_are_masked_and_some_replaced(build):
    plain, text, labels = masked_many_times(build(task__mask_rate=0.3))
    chosen = labels > 0
    assert (labels[chosen] == 1 + np.broadcast_to(plain, labels.shape)[chosen]).all()
    assert (text[~chosen] == np.broadcast_to(plain, labels.shape)[~chosen]).all()
    assert set(chosen.sum(axis=1)) == {round(0.3 * (plain > MASK).sum())}
    assert not chosen[:, plain <= MASK].any()
    hidden = (text == MASK)[chosen].mean()
    same = (text == plain)[chosen].mean()
    assert hidden == pytest.approx(0.8, abs=0.03)
    assert same == pytest.approx(0.1, abs=0.03)
    assert text.min() >= BOS and text.max() < build().model.config.vocab_size
    assert len(np.unique(chosen, axis=0)) > 100  # they differ from epoch to epoch


def test_the_share_of_masks_follows_the_place_in_the_order(build):
    task = build(task__mask_rate=0.2, task__final_mask_rate=0.4)
    example = task.prepare([TEXT], training=True)[0]
    num_tokens = (example["input"] > MASK).sum()
    masks = ScheduledMasks(task, np.array([0.2, 0.3, 0.4]), texts_per_step=2.0)
    rng = IndexedRng(seed=0)
    counts = [(masks(example, rng.at(place))["labels"] > 0).sum() for place in (0, 1, 3, 4, 99)]
    assert counts == [round(rate * num_tokens) for rate in (0.2, 0.2, 0.3, 0.4, 0.4)]
    assert task.num_predicted == build(task__mask_rate=0.4).num_predicted


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_whole_words_are_chosen_together(task_with, tmp_path, kind):
    config = TokenizerConfig(kind, vocab_size={"wordpiece": 60, "byte_bpe": 280}[kind])
    texts = {"text": [TEXT["text"]]}
    tokenizers = train_tokenizers(config, texts, tmp_path / "tokenizer", {}, True)
    task = task_with(tokenizers, "masked_lm", MODEL | WHOLE_WORDS)
    documents = [{"text": text} for text in ("the old man", "mends a hog", "the dog")]
    plain, _, labels = masked_many_times(task, documents)
    starts = np.array(task.tokenizers["text"].starts_word(plain))
    assert not starts.all()
    words = np.cumsum(starts)
    for row in labels > 0:
        for word in np.unique(words[row]):
            assert row[words == word].all()
        assert row.any()
    for end in 1 + np.flatnonzero(plain[1:-1] == EOS):  # the next document begins with a new word
        assert ((labels[:, end - 1] > 0) != (labels[:, end + 1] > 0)).any()


def test_the_loss_counts_the_chosen_tokens(task, params):
    prepared = task.prepare([TEXT], training=False)
    (batch, *_) = eval_batches(prepared, task.preprocess, lengths=task.lengths, rows=2)
    loss, weight, sums = compiled.loss_sums(task, params, batch)
    everywhere = np.broadcast_to(np.arange(16), batch["text"].shape)
    row = (batch["text"], batch["text_positions"], batch["text_segment_ids"])
    logits = compiled.logits(task, params, *row, everywhere)
    losses = run(cross_entropy, logits, np.maximum(batch["labels"] - 1, 0))
    assert weight == sums["tokens"] == (batch["labels"] > 0).sum() > 0
    assert loss == pytest.approx(float(losses[batch["labels"] > 0].sum()), rel=1e-4)


def test_rows_of_many_short_texts_mask_what_is_predicted_and_nothing_else(build, random_params):
    """At least one token of each text is chosen; of a row's 16 slots, 3 are predicted."""
    task = build(task__mask_rate=0.15, data__packing="apart")
    texts = task.prepare([{"text": "dog"}] * 40, training=False)
    (batch, *_) = eval_batches(texts, task.preprocess, lengths=task.lengths, rows=4)
    chosen, count = (batch["labels"] > 0).sum(axis=1), task.num_predicted
    assert (chosen > count).all()
    restored, number = restore_beyond(batch, count)
    kept = np.asarray(restored["labels"] > 0)
    assert (kept.sum(axis=1) == count).all() and number == (chosen - count).sum()
    places = np.flatnonzero(batch["labels"][0] > 0)
    ranks = np.searchsorted(places, np.flatnonzero(kept[0]))
    assert np.ptp(np.diff([-1, *ranks])) <= 1 and ranks[-1] == len(places) - 1  # spread evenly
    assert not ((np.asarray(restored["text"]) == MASK) & ~kept).any()
    sums = compiled.loss_sums(task, random_params(task), batch)[2]
    assert sums["tokens"] == kept.sum() and sums["restored"] == number
    share = task.metrics({name: float(x) for name, x in sums.items()} | {"loss": 0.0}, [])
    assert share["restored"] == pytest.approx(float(number) / chosen.sum())
    few, none = restore_beyond(batch, 16)
    assert none == 0 and (few["text"] == batch["text"]).all()


DECODE = DecodeConfig(num_outputs=3, batch_size=4)


def test_blanks_are_filled_in_place(task, params, caplog):
    lines = ["The [MASK]  sees", "no blank", "[MASK] man [MASK]"]
    one, none, two = task.predict(params, lines, DECODE, first_line=5)
    assert caplog.messages == ["line 6 has no [MASK] to fill; it is left unchanged"]
    assert [(output.text, output.score) for output in none] == [("no blank", 1.0)]
    tokenizer = task.tokenizers["text"]
    tokens = np.array([[BOS, *tokenizer.encode(lines[0]), EOS]])
    place = int(np.flatnonzero(tokens[0] == MASK)[0])
    row = (tokens, np.arange(tokens.shape[1])[None], np.ones_like(tokens), np.array([[place]]))
    logits = np.array(compiled.logits(task, params, *row)[0, 0])
    logits[: MASK + 1] = -np.inf
    probabilities = np.exp(logits) / np.exp(logits).sum()
    best = np.argsort(-probabilities)[:3]
    pieces = [piece.removeprefix("##") for piece in tokenizer.pieces(best)]
    assert [output.text for output in one] == [f"The {piece}  sees" for piece in pieces]
    np.testing.assert_allclose([o.score for o in one], probabilities[best], rtol=1e-3)
    first, middle, last = two[0].text.partition(" man ")
    assert first and middle and last and "[MASK]" not in two[0].text


def test_blanks_beyond_the_row_stay_and_what_is_cut_is_told(task, params, caplog):
    line = "the [MASK] " + "dog " * 20 + "[MASK]"
    (outputs,) = task.predict(params, [line], DECODE, first_line=7)
    room = task.max_length - 2
    count = len(task.tokenizers["text"].encode(line))
    told = f"line 7 has {count} tokens; only the first {room} are read (data.max_length is "
    assert caplog.messages == [f"{told}{task.max_length})"]
    assert outputs[0].text.count("[MASK]") == 1 and outputs[0].text.endswith("dog [MASK]")


def test_a_tokenizer_without_a_mask_is_refused(build):
    with pytest.raises(UserError, match="asks for a tokenizer with .MASK."):
        build("char")


def test_more_outputs_than_the_vocabulary_has_pieces_are_refused(task, params):
    many = DecodeConfig(num_outputs=1000)
    with pytest.raises(UserError, match="num_outputs is 1000; the vocabulary has [0-9]+ pieces to"):
        list(task.predict(params, ["the [MASK]"], many))


@pytest.mark.parametrize(
    "line, words, filled",
    [
        ("a _ b _", ["dog", "cat"], "a dog b cat"),
        ("a _ b _", [" dog"], "a dog b _"),
        ("_ a_, b", [" the", " dog"], "the a dog, b"),
        ("un_", ["able"], "unable"),
    ],
)
def test_words_replace_blanks(line, words, filled):
    assert fill_blanks(line, "_", words) == filled
