# SPDX-License-Identifier: Apache-2.0
"""Masked diffusion: the bound against exact enumeration, and predictions."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from tests.refusals import assert_refused
from tests.tasks import compiled
from tests.tasks.test_denoising import influence
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.tasks.corruptions import (
    BlockDiffusion,
    BlockDiffusionOptions,
    Diffusion,
    TextTokens,
    bound_masks,
)
from transformer_jax.tasks.diffusion import loss_weights
from transformer_jax.tokenization import DEFAULT_SPECIALS, TokenizerConfig, train_tokenizers

LENGTH = 4
TEXT = {"text": "abca bcab cabc aabb ccab\nabcabc\n"}
MODELS = {
    "encoder": {"model.architecture": "encoder_only"},
    "decoder": {"model.architecture": "decoder_only", "model.attention_layer": "bidirectional"},
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    config = TokenizerConfig("char", vocab_size=16, normalization="identity")
    directory = tmp_path_factory.mktemp("tokenizer") / "char"
    return train_tokenizers(config, {"text": [TEXT["text"]]}, directory, {}, True)


@pytest.fixture(scope="module")
def build(tokenizers, task_with):
    def build(objective="diffusion", model="encoder", **fields):
        changes = {"task.objective": objective} | MODELS[model]
        return task_with(tokenizers, "denoising", changes, **fields)

    return build


def texts_of_three_tokens(tokenizers):
    letters = tokenizers.text("text").encode("abc")[-3:]
    return np.array([*itertools.product(letters, repeat=LENGTH)])


def log_probs_of_hidden(task, params, texts):
    """log P(token i | visible ones) of each text by set of hidden places, {set: [N, LENGTH]}."""
    tables = {}
    for hidden in itertools.product([False, True], repeat=LENGTH):
        inputs = np.where(hidden, task.corruption.text.mask, texts)
        rows = np.pad(inputs, ((0, 0), (1, 0)), constant_values=task.first).astype(np.int32)
        places = np.broadcast_to(np.arange(LENGTH + 1, dtype=np.int32), rows.shape)
        logits = compiled.logits(task, params, rows, places, np.ones_like(rows))
        log_probs = np.asarray(jax.nn.log_softmax(logits), np.float64)[:, 1:]
        places = frozenset(np.flatnonzero(hidden).tolist())
        tables[places] = np.take_along_axis(log_probs, texts[..., None], 2)[..., 0]
    return tables


def exact(tables, places):
    """Bound and negative log-likelihood of the tokens at these places, by recursion over all orders
    in which they become visible."""

    @functools.cache
    def bound(hidden):
        parts = [bound(hidden - {i}) - tables[hidden][:, i] for i in hidden]
        return np.mean(parts, axis=0) if parts else 0.0

    @functools.cache
    def probability(hidden):
        parts = [probability(hidden - {i}) * np.exp(tables[hidden][:, i]) for i in hidden]
        return np.mean(parts, axis=0) if parts else 1.0

    return bound(places), -np.log(probability(places))


def test_scores_equal_enumeration_and_are_never_above_the_likelihood(task, params, tokenizers):
    texts = texts_of_three_tokens(tokenizers)
    bound, nll = exact(log_probs_of_hidden(task, params, texts), frozenset(range(LENGTH)))
    scores = task.score_tokens(params, [([], text.tolist()) for text in texts], 512)
    np.testing.assert_allclose([-score.log_prob for score in scores], bound, rtol=1e-4)
    assert (bound >= nll).all() and (bound - nll).max() > 1e-3


def test_the_score_of_a_target_is_the_bound_given_its_source(task, params, tokenizers):
    texts = texts_of_three_tokens(tokenizers)[::9]
    bound, _ = exact(log_probs_of_hidden(task, params, texts), frozenset({2, 3}))
    pairs = [(text[:2].tolist(), text[2:].tolist()) for text in texts]
    found = task.score_tokens(params, pairs, 64)
    np.testing.assert_allclose([-score.log_prob for score in found], bound, rtol=1e-4)
    encode = tokenizers.text("text").encode
    written = task.score(params, ["ab"], ["ca"], 4)[0]
    assert written == task.score_tokens(params, [(encode("ab"), encode("ca"))], 4)[0]
    assert task.score(params, ["ab"], [""], 4)[0].log_prob == 0


def test_a_long_text_has_an_estimate_without_bias(build, task, params, tokenizers):
    """Over all texts; that of a text is the same wherever it is."""
    texts = texts_of_three_tokens(tokenizers)
    bounds, _ = exact(log_probs_of_hidden(task, params, texts), frozenset(range(LENGTH)))
    few = build(task__diffusion__draws=10)  # of 15 masks
    pairs = [([], text.tolist()) for text in texts]
    scores = np.array([score.log_prob for score in few.score_tokens(params, pairs, 512)])
    assert -scores.mean() == pytest.approx(np.mean(bounds), rel=0.02)
    assert np.abs(scores + bounds).max() > 0
    (alone,) = few.score_tokens(params, pairs[7:8], 512)
    assert alone.log_prob == pytest.approx(scores[7], rel=1e-5)


@pytest.mark.parametrize("size", [None, 2, 3])
def test_the_training_loss_has_the_bound_as_its_mean(size):
    """Over 10,000 texts, with any loss of each mask in place of a model's."""
    rng = np.random.default_rng(0)
    text = TextTokens(dataclasses.replace(DEFAULT_SPECIALS, mask=9), np.zeros(0, bool))
    corruption = (
        Diffusion(text) if size is None else BlockDiffusion(text, BlockDiffusionOptions(size=size))
    )
    tokens = np.arange(LENGTH, dtype=np.int32)
    table = rng.random((2**LENGTH, LENGTH))

    def loss(is_hidden):
        code = int((is_hidden << np.arange(len(is_hidden))).sum())
        return table[code, : len(is_hidden)][is_hidden].sum()

    expected = 0.0
    for block in corruption.blocks(LENGTH):
        for hidden, weight in bound_masks(len(block), 100, rng):
            is_hidden = np.zeros(block.stop, bool)
            is_hidden[block.start :] = hidden
            expected += weight * loss(is_hidden)
    drawn = [corruption(tokens, rng) for _ in range(10_000)]
    weights = [m.counts.max() * (m.counts > 0).sum() / m.is_hidden.sum() for m in drawn]
    losses = [loss(masked.is_hidden) for masked in drawn]
    total = np.mean(np.multiply(weights, losses))
    assert total == pytest.approx(expected, rel=0.03)
    assert np.mean([masked.counts.sum() for masked in drawn]) == pytest.approx(LENGTH, rel=0.02)
    assert all((masked.inputs[masked.is_hidden] == 9).all() for masked in drawn[:100])
    sizes = np.bincount([masked.is_hidden.sum() for masked in drawn], minlength=5)
    if size is None:
        np.testing.assert_allclose(sizes[1:] / 10_000, 1 / 4, atol=0.015)


@pytest.mark.parametrize("model", MODELS)
def test_the_loss_counts_hidden_tokens_with_their_weights(build, random_params, model):
    task = build(model=model)
    params = random_params(task)
    items = task.prepare([TEXT], training=False)
    batch = eval_batches(items, task.preprocess, lengths=task.lengths, rows=2)[0]
    loss, weight, sums = compiled.loss_sums(task, params, batch)
    rows = [batch[name] for name in ("text", "text_positions", "text_segment_ids")]
    log_probs = np.asarray(jax.nn.log_softmax(compiled.logits(task, params, *rows)))
    labels = batch["labels"]
    of_label = np.take_along_axis(log_probs, np.maximum(labels - 1, 0)[..., None], 2)[..., 0]
    weights = np.zeros(labels.shape)
    for row, segments in enumerate(batch["text_segment_ids"]):
        for number in set(segments) - {0}:
            places = segments == number
            weights[row, places] = (places.sum() - 1) / (labels[row, places] > 0).sum()
    weights *= labels > 0
    np.testing.assert_allclose(loss_weights(batch), weights, rtol=1e-5)
    assert loss == pytest.approx(-(of_label * weights)[labels > 0].sum(), rel=1e-4)
    # Each text counts all its tokens, and not the first one.
    assert (
        weight
        == sums["tokens"]
        == ((batch["text_segment_ids"] > 0) & (batch["text_positions"] > 0)).sum()
    )


def test_a_decoder_sees_the_whole_sentence_and_no_other(build, random_params):
    task = build(model="decoder")
    segments = [1, 1, 1, 2, 2, 2, 2]
    found = influence(task, random_params(task), [2, 5, 6, 2, 5, 6, 5], segments)
    assert (found == np.equal.outer(segments, segments)).all()


def test_blanks_are_filled_and_texts_continued(task, params):
    decode = DecodeConfig(batch_size=4, max_extra_length=5)
    filled, continued = (
        outputs[0] for outputs in task.predict(params, ["ab[MASK]a [MASK]b", "ab"], decode)
    )
    assert filled.text[:2] == "ab" and filled.text[3:5] == "a " and filled.text[6:] == "b"
    assert len(continued.text) <= 5 and continued.score < 0
    sampled = DecodeConfig(num_outputs=3, temperature=1.0, max_extra_length=5, batch_size=2)
    (outputs,) = task.predict(params, ["ab"], sampled)
    assert len({o.text for o in outputs}) > 1
    assert [o.score for o in outputs] == sorted((o.score for o in outputs), reverse=True)
    inputs = task.model_inputs(params, "ab[MASK]", None, decode)
    assert inputs.tokens["encoder"][0] == task.first and len(inputs.pieces["encoder"]) == 4
    ((again, *_),) = task.predict(params, ["ab"], sampled)
    assert again == outputs[0]  # the same seed


def test_blocks_continue_a_text_one_after_another(build, params, tokenizers):
    task = build("block_diffusion", task__block_diffusion__size=2)
    ((output,),) = task.predict(params, ["abc"], DecodeConfig(max_extra_length=4))
    mask = task.corruption.text.mask
    text = tokenizers.text("text").encode("abc")
    unmasking = task.unmasking(DecodeConfig())
    num_blocks = math.ceil((len(text) + 4) / 2) - len(text) // 2
    for _ in range(num_blocks):  # what a block becomes does not depend on those after it
        stop = min(2 * (len(text) // 2 + 1), len(tokenizers.text("text").encode("abc")) + 4)
        rows = [task.first, *text, *[mask] * (stop - len(text))]
        keys = np.zeros(3, np.int32)
        arrays = task._arrays([(rows, keys)])
        tokens, _ = task._program(params, arrays, unmasking=unmasking, seed=0)
        text = np.asarray(tokens)[0, 1 : 1 + stop].tolist()
        if task.specials.eos in text:
            break
    written = text[len(tokenizers.text("text").encode("abc")) :]
    if task.specials.eos in written:
        written = written[: written.index(task.specials.eos)]
    assert output.text == tokenizers.text("text").decode(written)


def test_what_diffusion_cannot_have_is_refused_by_name(build, task, params):
    def predict(line="ab", **changes):
        return lambda: [*task.predict(params, [line], DecodeConfig(**changes))]

    assert_refused(
        {
            "a decoder sees those before alone; set model.attention_layer to 'bidirectional'": (
                lambda: build(model="decoder", model__attention_layer="multi_head")
            ),
            "does not go with architecture 'encoder_decoder'": (
                lambda: build(model__architecture="encoder_decoder")
            ),
            "block_diffusion.size is 16; a row of 16 slots": lambda: build("block_diffusion"),
            "decode.search 'greedy' writes from left to right": predict(search="greedy"),
            "num_outputs is 2, and they are all the same": predict(num_outputs=2),
            "line 1 has 18 tokens, and there is room for 14": predict("ab " * 6),
            "score: line 513 has": lambda: task.score(params, ["ab " * 6], ["c"], 1, 513),
        }
    )
