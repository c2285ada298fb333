# SPDX-License-Identifier: Apache-2.0
"""Tagging: one tag per word, read at its first piece."""

import jax
import numpy as np
import pytest

from tests.tasks import compiled
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.tokenization.specials import BOS, EOS

LABELS = (("tags", ("D", "N", "V")),)
EXAMPLES = [
    {"text": "the woman sees", "tags": "D N V"},
    {"text": "men walk", "tags": "N V"},
    {"text": "a dog", "tags": "D N"},
]


@pytest.fixture(scope="module")
def task(tokenizers_of, task_with):
    fields = {"model.architecture": "encoder_only", "data.max_length": 16}
    return task_with(tokenizers_of("wordpiece", LABELS), "tagging", fields)


def test_the_tag_of_a_word_is_at_its_first_piece(task):
    words = EXAMPLES[0]["text"].split(" ")
    pieces = task.tokenizers["text"].encode_words(words)
    assert max(map(len, pieces)) > 1
    features = task.preprocess(EXAMPLES[0], None)
    assert features["text"].tolist() == [BOS, *(p for word in pieces for p in word), EOS]
    expected = [0]
    for tag, word in enumerate(pieces, 1):
        expected += [tag] + [0] * (len(word) - 1)
    assert features["tags"].tolist() == [*expected, 0]
    with pytest.raises(UserError, match="'X'"):
        task.preprocess({"text": "dog", "tags": "X"}, None)


def test_the_loss_of_packed_rows_is_that_of_each_text_alone(task, params):
    batches = eval_batches(EXAMPLES, task.preprocess, lengths=task.lengths, rows=2)
    packed = [compiled.loss_sums(task, params, batch) for batch in batches]
    assert sum(float(weight) for _, weight, _ in packed) == 7
    alone = 0.0
    for example in EXAMPLES:
        features = task.preprocess(example, None)
        row = compiled.padded_row(features["text"], 16)
        log_probs = jax.nn.log_softmax(compiled.logits(task, params, *row))[0]
        tagged = np.flatnonzero(features["tags"])
        alone -= sum(float(log_probs[i, features["tags"][i] - 1]) for i in tagged)
    assert sum(float(loss) for loss, _, _ in packed) == pytest.approx(alone, rel=1e-4)


def test_each_word_of_a_line_has_a_tag(task, params, caplog):
    lines = ["the woman sees", "", "dog " * 20 + "dog", "men  walk"]
    found = [outputs[0] for outputs in task.predict(params, lines, DecodeConfig(), 3)]
    tags = [output.text.split() for output in found]
    assert [len(of_line) for of_line in tags] == [3, 0, 21, 2]
    assert "line 5 is too long: its last" in caplog.messages[0] and len(caplog.messages) == 1
    left = tags[2].count("_")
    assert left and tags[2][-left:] == ["_"] * left
    tokens = task.preprocess(EXAMPLES[0], None)
    logits = compiled.logits(task, params, *compiled.padded_row(tokens["text"], 16))[0]
    best = np.argmax(logits[np.flatnonzero(tokens["tags"])], axis=1)
    assert tags[0] == ["DNV"[i] for i in best]


def test_accuracy_counts_words(task, params):
    metrics, outputs = task.evaluate(params, EXAMPLES, DecodeConfig(batch_size=2))
    found = " ".join(output.text for output in outputs).split()
    expected = " ".join(example["tags"] for example in EXAMPLES).split()
    right = np.mean([a == b for a, b in zip(found, expected, strict=True)])
    assert metrics == {"accuracy": pytest.approx(right), "words": 7}


def test_words_beyond_the_row_are_wrong_whatever_their_tag(tokenizers_of, task_with, random_params):
    fields = {"model.architecture": "encoder_only", "data.max_length": 16}
    tokenizers = tokenizers_of("wordpiece", (("tags", ("_",)),))
    task = task_with(tokenizers, "tagging", fields)
    example = {"text": " ".join(20 * ["dog"]), "tags": " ".join(20 * "_")}
    read = np.count_nonzero(task.preprocess(example, None)["tags"])
    metrics, (output,) = task.evaluate(random_params(task), [example], DecodeConfig())
    assert metrics == {"accuracy": pytest.approx(read / 20), "words": 20} and read < 20
    assert output.text.split() == read * ["_"] + (20 - read) * ["__"]


def test_an_example_whose_first_word_does_not_fit_is_overlong(tokenizers_of, task_with):
    fields = {"model.architecture": "encoder_only", "data.max_length": 3}
    narrow = task_with(tokenizers_of("wordpiece", LABELS), "tagging", fields)
    words = EXAMPLES[0]["text"].split(" ")
    pieces = narrow.tokenizers["text"].encode_words(words)
    word = next(word for word, of_word in zip(words, pieces, strict=True) if len(of_word) > 1)
    long = {"text": f"{word} the", "tags": "N D"}
    batches = eval_batches([long, *EXAMPLES], narrow.preprocess, lengths=narrow.lengths, rows=1)
    assert batches.overlong >= 1
    with pytest.raises(UserError, match="each of the 1 examples is longer than a row"):
        eval_batches([long], narrow.preprocess, lengths=narrow.lengths, rows=1)
