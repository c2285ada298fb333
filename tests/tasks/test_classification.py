# SPDX-License-Identifier: Apache-2.0
"""Classification: tokens of texts and pairs, the loss of packed rows, predicted labels."""

import functools

import jax
import numpy as np
import pytest

from tests.tasks import compiled
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.tokenization.specials import BOS, EOS

LABELS = (("label", ("no", "yes", "yes")),)
EXAMPLES = [
    {"text": "the dog", "label": "yes"},
    {"text": "old man", "label": "no"},
    {"text": "a dog sees", "label": "yes"},
]
ARCHITECTURES = ("encoder_only", "decoder_only", "encoder_decoder")


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    @functools.cache
    def build(architecture, max_length=16):
        fields = {"model.architecture": architecture, "data.max_length": max_length}
        return task_with(tokenizers_of("wordpiece", LABELS), "classification", fields)

    return build


@pytest.mark.parametrize("architecture, first", [*zip(ARCHITECTURES, (BOS, EOS, BOS), strict=True)])
def test_texts_and_pairs_are_delimited_and_fit_the_row(build, architecture, first):
    task = build(architecture)
    encode = task.tokenizers["text"].encode
    example = {"text": "the dog", "pair": "a man", "label": "yes"}
    features = task.preprocess(example, None)
    expected = [first, *encode("the dog"), EOS, *encode("a man"), EOS]
    assert features["text"].tolist() == expected and features["label"].tolist() == [1]
    long = task.preprocess({"text": "dog " * 30, "pair": "man", "label": "no"}, None)["text"]
    assert len(long) == 16 and long[-1] == EOS
    assert long[-2 - len(encode("man")) :].tolist() == [EOS, *encode("man"), EOS]


def test_a_label_never_seen_in_training_is_refused(build):
    with pytest.raises(UserError, match="maybe"):
        build("encoder_only").preprocess({"text": "dog", "label": "maybe"}, None)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_of_packed_rows_is_that_of_each_text_alone(build, random_params, architecture):
    task = build(architecture)
    params = random_params(task)
    lengths = task.lengths
    assert lengths == {"text": 16, "label": 2}
    batches = eval_batches(EXAMPLES, task.preprocess, lengths=lengths, rows=2)
    packed = [compiled.loss_sums(task, params, batch) for batch in batches]
    assert sum(float(weight) for _, weight, _ in packed) == 3
    found = list(task.predict(params, [ex["text"] for ex in EXAMPLES], DecodeConfig(num_outputs=2)))
    alone = 0.0
    for example, outputs in zip(EXAMPLES, found, strict=True):
        probabilities = {output.text: output.score for output in outputs}
        assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        assert outputs[0].score >= outputs[1].score
        alone -= np.log(probabilities[example["label"]])
    assert sum(float(loss) for loss, _, _ in packed) == pytest.approx(alone, rel=1e-4)


def test_scores_compare_the_likeliest_label(build, random_params, caplog):
    task = build("encoder_only")
    params = random_params(task)
    metrics, outputs = task.evaluate(params, EXAMPLES, DecodeConfig(batch_size=2))
    right = [o.text == ex["label"] for o, ex in zip(outputs, EXAMPLES, strict=True)]
    assert metrics["accuracy"] == pytest.approx(np.mean(right))
    assert {"f1", "matthews"} <= set(metrics)
    same = [EXAMPLES[0] | {"label": label} for label in ("pos", "neg")]
    _, outputs = task.evaluate(params, same, DecodeConfig(batch_size=2))
    assert caplog.messages[-1] == f"all 2 predictions are {outputs[0].text!r}"


def test_a_pair_is_read_from_a_line_with_a_tab(build, random_params):
    task = build("encoder_only")
    params = random_params(task)
    (outputs,) = task.predict(params, ["the dog\ta man"], DecodeConfig(num_outputs=2))
    tokens = task.tokens(["the dog", "a man"])
    row = (np.array([tokens]), np.arange(len(tokens))[None], np.ones((1, len(tokens)), int))
    logits = compiled.logits(task, params, *row, np.ones((1, 1), int))[0, 0]
    best = int(np.argmax(logits))
    assert outputs[0].text == ["no", "yes"][best]
    assert outputs[0].score == pytest.approx(float(jax.nn.softmax(logits)[best]), rel=1e-4)


def test_what_is_cut_at_prediction_is_told(build, random_params, caplog):
    task = build("encoder_only")
    lines = ["the dog", "dog " * 30, "man\t" + "dog " * 20]
    list(task.predict(random_params(task), lines, DecodeConfig(), 5))
    encode = task.tokenizers["text"].encode
    counts = [len(encode(lines[1])), len(encode("man")) + len(encode("dog " * 20))]
    limit = "(data.max_length is 16)"
    assert caplog.messages == [
        f"line 6 has {counts[0]} tokens; only 14 are read {limit}",
        f"line 7 has {counts[1]} tokens; only 13 are read {limit}",
    ]


def test_inputs_of_both_stacks_of_an_encoder_decoder_are_inspected(build):
    task = build("encoder_decoder")
    tokens = task.tokens(["the dog", "a man"])
    found = task.model_inputs(None, "the dog\ta man", None, DecodeConfig())
    assert found.tokens == {"encoder": tokens, "decoder": [BOS, *tokens[:-1]]}
    assert found.inputs[0][0, : len(tokens)].tolist() == tokens and len(found.inputs) == 4


def test_rows_without_room_for_a_token_of_each_text_are_refused(build):
    narrow = build("encoder_only", max_length=4)
    assert len(narrow.tokens(["the dog"])) == 4
    with pytest.raises(UserError, match="data.max_length is 4; a pair takes 5 tokens, special one"):
        narrow.tokens(["the dog", "old man"])
