# SPDX-License-Identifier: Apache-2.0
"""Inspection of the models of all tasks."""

import functools
import json
import re

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from tests.tasks import compiled
from tests.tasks.conftest import CHAT
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.lab.analysis.attention_page import attention_page
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers

LINE = "the old [MASK] sees"


@pytest.mark.parametrize("name", ["language_modeling", "masked_lm", "classification", "tagging"])
def test_attention_is_labeled_with_the_tokens_of_the_line(run_of, name):
    run, stack = run_of(name), "decoder" if name == "language_modeling" else "encoder"
    found, reading = run.attention(LINE), run.model_inputs(LINE)
    tokenizer = run.tokenizer.text("text")
    assert found.kinds == [stack] and found.texts == {"text": LINE}
    assert found.tokens[stack] == tokenizer.pieces(reading.tokens[stack])
    assert tokenizer.decode(reading.tokens[stack]).startswith("the old")
    length = len(found.tokens[stack])
    weights = found.weights(stack)
    assert weights.shape == (1, 2, length, length)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert bool(np.triu(weights[0, 0], 1).any()) == (stack == "encoder")


def test_the_lens_of_a_masked_model_ends_in_its_prediction(run_of):
    run = run_of("masked_lm")
    found, reading = run.hidden(LINE), run.model_inputs(LINE)
    logits = compiled.logits(run.task, run.params, *reading.inputs)[0, : found.lens.shape[1]]
    np.testing.assert_allclose(found.lens[-1], jax.nn.log_softmax(logits), atol=1e-5)


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_a_walk_ends_in_labels(run_of, name):
    run = run_of(name)
    steps = run.walk("the old dog").steps
    tables = [step for step in steps if step.axes and set(step.axes[0].labels) == {"A", "B"}]
    assert steps[0].kind == "tokens" and tables
    for table in tables:
        assert table.values[:, -1].sum() == pytest.approx(1, abs=1e-5)
    if name == "classification":
        ((likeliest,),) = run.n_best(["the old dog"])
        assert tables[-1].axes[0].labels[0] == likeliest.text
        assert tables[-1].values[0, -1] == pytest.approx(likeliest.score, abs=1e-5)


def test_the_inputs_of_a_pair(run_of):
    run = run_of("classification")
    pair = run.model_inputs("the old\tdog")
    separator = run.tokenizer.specials("text").encoder.between[0]
    assert list(pair.tokens["encoder"]).count(separator) == 2
    with pytest.raises(tj.UserError, match="'dog' is not a label of this run; it has A, B"):
        run.attention("the old", "dog")
    with pytest.raises(tj.UserError, match="reads a text alone; give no target"):
        run_of("masked_lm").attention("the old", "dog")


def test_the_labels_of_a_text_have_the_probabilities_of_predict(run_of):
    run = run_of("classification")
    attention = run.attention("the old dog", "B")
    what, (found,) = attention.predictions
    (expected,) = run.n_best(["the old dog"], num_outputs=2)
    assert (what, found.position, found.gold) == ("label", None, "B")
    assert [output.text for output in found.outputs] == [output.text for output in expected]
    scores = [output.score for output in found.outputs]
    np.testing.assert_allclose(scores, [output.score for output in expected], atol=1e-6)
    assert sum(scores) == pytest.approx(1, abs=1e-6)
    page = re.search(r'id="data">(.*?)</script>', attention_page(attention, "classifier"))[1]
    (shown,) = json.loads(page)["predictions"]["each"]
    assert shown["outputs"] == [[output.text, round(output.score, 6)] for output in found.outputs]
    assert (shown["rest"], shown["gold"]) == (pytest.approx(0, abs=2e-6), "B")


def test_each_word_of_a_tagger_has_a_label(run_of):
    run = run_of("tagging")
    what, each = run.attention("the old dog", "A B A").predictions
    assert what == "label" and [one.gold for one in each] == ["A", "B", "A"]
    ((expected,),) = run.n_best(["the old dog"])
    assert " ".join(one.outputs[0].text for one in each) == expected.text
    likeliest = [one.outputs[0].score for one in each]
    assert np.mean(likeliest) == pytest.approx(expected.score, abs=1e-6)
    with pytest.raises(tj.UserError, match="3 words but 2 gold tags"):
        run.attention("the old dog", "A B")


def test_a_language_model_predicts_a_token_at_each_position(run_of):
    run = run_of("language_modeling")
    found, reading = run.attention(LINE), run.model_inputs(LINE)
    logits = np.asarray(compiled.logits(run.task, run.params, *reading.inputs)[0])
    assert found.predictions.kind == "next token"
    best = logits[: len(found.tokens["decoder"])].argmax(-1).tolist()
    pieces = run.tokenizer.text("text").pieces(best)
    assert [one.outputs[0].text for one in found.predictions.by_position] == pieces
    masked = run_of("masked_lm").attention(LINE)
    (one,) = masked.predictions.by_position
    assert masked.tokens["encoder"][one.position] == "[MASK]"


def test_texts_beyond_the_positions_of_a_model_are_refused(task_with, tokenizers_of, tmp_path):
    """Learned positions would all have the last vector from there on."""
    chat = task_with(tokenizers_of("byte_bpe"), "instruction", CHAT)
    config = TokenizerConfig("char", vocab_size=16, normalization="identity")
    texts = dict.fromkeys(("source", "target"), ["abc"])
    tokenizers = train_tokenizers(config, texts, tmp_path / "tokenizer")
    lengths = {f"data.max_{side}_length": 16 for side in texts}
    pairs = task_with(tokenizers, "translation", lengths)
    for task in (pairs, chat):
        length = task.model.config.max_length
        read = functools.partial(task.model_inputs, None, "ab", decode=DecodeConfig())
        words = f"the text is too long: positions 'learned' reach to max_length {length}, sequences"
        assert_refused({words: functools.partial(read, length * "abc")})
        assert read("a").inputs
