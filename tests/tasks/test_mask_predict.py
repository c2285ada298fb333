# SPDX-License-Identifier: Apache-2.0
"""Mask-predict: rows, lengths, no leaks, outputs, the bound."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.refusals import assert_refused
from tests.tasks import compiled
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.inference.config import DecodeConfig, UnmaskOptions
from transformer_jax.tasks.base import preprocess_sampled
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers

PAIRS = [
    {"source": "abca", "target": "bcab"},
    {"source": "ca", "target": "aabbc"},
    {"source": "bbc", "target": "cc"},
]
FIELDS = {
    "model.attention_layer": "bidirectional",
    "data.max_source_length": 16,
    "data.max_target_length": 8,
}
SIDES = ("source", "target")
LEARNED = {"model__positions": "learned", "model__max_length": 16}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    config = TokenizerConfig("char", vocab_size=16, normalization="identity")
    texts = dict.fromkeys(SIDES, ["abc"])
    return train_tokenizers(config, texts, tmp_path_factory.mktemp("tokenizer"), {}, True)


@pytest.fixture(scope="module")
def build(tokenizers, task_with):
    return functools.partial(task_with, tokenizers, "mask_predict", FIELDS)


def log_probs(task, params, batch):
    inputs = task.supervised(batch).inputs
    return np.asarray(jax.nn.log_softmax(compiled.logits(task, params, *inputs)), np.float64)


def one_row(task, source, target):
    """The batch of a pair in which the tokens `target`, masks or not, are read."""
    rows = [task.row(source, np.array(target), np.zeros(len(target), bool), has_length=True)]
    return eval_batches(rows, lambda row, _: row, lengths=task.lengths, rows=1)[0]


def test_tokens_are_drawn_of_the_same_text(task_with, tmp_path):
    text = "the old man sees the old dog"
    config = TokenizerConfig("byte_bpe", vocab_size=280)
    tokenizers = train_tokenizers(config, dict.fromkeys(SIDES, [text]), tmp_path / "t", {}, True)
    changes = {"tokenizer.kind": "byte_bpe", "tokenizer.sampling": 0.4, "model.max_length": 64}
    changes |= {f"data.max_{side}_length": 64 for side in SIDES}
    task = task_with(tokenizers, "mask_predict", FIELDS | changes)
    (item,) = task.prepare([dict.fromkeys(SIDES, text)], training=True)
    rows = [preprocess_sampled(task, item, np.random.default_rng(seed)) for seed in range(4)]
    decode = tokenizers.text("source").decode
    assert {decode(row["source"]) for row in rows} == {text}
    for feature in SIDES:
        assert len({len(row[feature]) for row in rows}) > 1


def test_a_number_of_target_tokens_drawn_uniformly_is_masked(task):
    (item, *_) = task.prepare(PAIRS, training=True)
    rng = np.random.default_rng(0)
    rows = [task.preprocess(item, rng) for _ in range(2000)]
    source_mask = task.tokenizers.specials("source").mask
    for row in rows[:50]:
        hidden = row["labels"][1:] > 0
        assert row["source"][0] == source_mask and row["target"][0] == task.specials.start
        assert row["labels"][0] == 1 + 4
        assert (row["labels"][1:][hidden] - 1 == item["target"][hidden]).all()
        assert (row["target"][1:] == np.where(hidden, task.mask, item["target"])).all()
    counts = np.bincount([(row["labels"][1:] > 0).sum() for row in rows], minlength=5)
    np.testing.assert_allclose(counts / 2000, [0, *[1 / 4] * 4], atol=0.03)


def test_lengths_see_their_source_alone_and_tokens_the_whole_pair(task, params):
    """Two pairs in a row; each token is replaced by another one."""
    items = task.prepare(PAIRS[:2], training=False)
    lengths = task.lengths | {"target": 16, "labels": 16}
    batch = eval_batches(items, task.preprocess, lengths=lengths, rows=1)[0]
    assert {1, 2} <= set(batch["target_segment_ids"][0])
    usual = log_probs(task, params, batch)[0]
    is_length = (batch["target_positions"][0] == 0) & (batch["target_segment_ids"][0] > 0)
    is_token = (batch["target_segment_ids"][0] > 0) & ~is_length
    segments = batch["target_segment_ids"][0]
    for feature in ("source", "target"):
        for place in np.flatnonzero(batch[f"{feature}_segment_ids"][0] == 2):
            changed = {**batch, feature: batch[feature].copy()}
            changed[feature][0, place] = 3 + (changed[feature][0, place] == 3)
            differs = (log_probs(task, params, changed)[0] != usual).any(axis=1)
            is_seen = is_token if feature == "target" else is_token | is_length
            assert (differs[segments > 0] == (is_seen & (segments == 2))[segments > 0]).all()


def test_one_pass_is_the_argmax_of_each_place(task, params):
    """For each of the likeliest lengths, and the score is the mean log-probability."""
    decode = DecodeConfig(search="unmask", beam_size=2, num_outputs=2)
    decode = dataclasses.replace(decode, options=(UnmaskOptions(steps=1, remask=True),))
    blank, outputs = task.predict(params, ["", "abc"], decode)
    assert [output.text for output in blank] == [""]
    source = task.encode_pair({"source": "abc", "target": ""})["source"]
    of_lengths = log_probs(task, params, one_row(task, source, []))[0, 0, :8]
    expected = []
    for length in 1 + np.argsort(-of_lengths[1:])[:2]:
        batch = one_row(task, source, [task.mask] * length)
        logits = log_probs(task, params, batch)[0, 1 : 1 + length]
        logits[:, [*task.specials.banned, task.mask, task.specials.eos]] = -np.inf
        of_tokens = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        text = task.tokenizers.text("target").decode(of_tokens.argmax(axis=1).tolist())
        expected.append((of_tokens.max(axis=1).mean(), text))
    expected.sort(reverse=True)
    assert [output.text for output in outputs] == [text for _, text in expected]
    np.testing.assert_allclose([o.score for o in outputs], [x for x, _ in expected], rtol=1e-4)


def test_passes_hide_the_tokens_of_least_confidence_again(task, params):
    """The paper's algorithm (section 3.2), written with NumPy, for one length."""
    source = task.encode_pair({"source": "abc", "target": ""})["source"]
    of_lengths = log_probs(task, params, one_row(task, source, []))[0, 0, :8]
    length = 1 + int(of_lengths[1:].argmax())
    steps = 3
    banned = [*task.specials.banned, task.mask, task.specials.eos]
    tokens = np.full(length, task.mask)
    confidences = np.zeros(length)
    hidden = np.arange(length)
    for step in range(steps):
        logits = log_probs(task, params, one_row(task, source, tokens))[0, 1 : 1 + length]
        logits[:, banned] = -np.inf
        of_tokens = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        tokens[hidden] = of_tokens.argmax(axis=1)[hidden]
        confidences[hidden] = of_tokens.max(axis=1)[hidden]
        written = tokens.copy()
        hidden = np.argsort(confidences)[: length * (steps - step - 1) // steps]
        tokens[hidden] = task.mask
    decode = DecodeConfig(search="unmask", beam_size=1)
    decode = dataclasses.replace(decode, options=(UnmaskOptions(steps=steps, remask=True),))
    ((output,),) = task.predict(params, ["abc"], decode)
    assert output.text == task.tokenizers.text("target").decode(written.tolist())
    assert output.score == pytest.approx(confidences.mean(), rel=1e-4)


def test_the_score_is_that_of_the_length_and_the_bound_of_the_tokens(task, params):
    """For a target of two tokens: the mean over the orders in which they become visible."""
    pair = task.encode_pair({"source": "abc", "target": "ba"})
    first, second = pair["target"]
    mask = task.mask
    both, left, right = (
        log_probs(task, params, one_row(task, pair["source"], target))[0]
        for target in ([mask, mask], [mask, second], [first, mask])
    )
    expected = both[0, 2] + (both[1, first] + right[2, second]) / 2
    expected += (both[2, second] + left[1, first]) / 2
    (score,) = task.score(params, ["abc"], ["ba"], 4)
    assert score.log_prob == pytest.approx(expected, rel=1e-4)


def test_what_mask_predict_cannot_have_is_refused_by_name(task, params, build):
    def predict(**changes):
        return lambda: [*task.predict(params, ["ab"], DecodeConfig(**changes))]

    def pair(target):
        return task.encode_pair({"source": "a", "target": target})

    assert_refused(
        {
            "set model.attention_layer to 'bidirectional'": (
                lambda: build(model__attention_layer="multi_head")
            ),
            "asks for encoder_decoder": lambda: build(model__architecture="decoder_only"),
            "too few classes for the lengths": lambda: build(data__max_target_length=12),
            "decode.search 'greedy' writes from left to right": predict(search="greedy"),
            "of the 2 likeliest lengths": predict(search="unmask", beam_size=2, num_outputs=3),
            "score: the target of line 513 has 9 tokens": (
                lambda: task.score(params, ["a"], ["abcabcabc"], 1, 513)
            ),
            "score: the target of line 2 has 9 tokens": (
                lambda: task.score_tokens(params, [pair("ab"), pair("abcabcabc")], 1)
            ),
            "score: positions 'learned' reach to max_length 16": (
                lambda: build(**LEARNED).score(params, [20 * "a"], ["a"], 1)
            ),
        }
    )
