# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: training rows, scores and answers."""

import json

import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.runs.evaluate import evaluate_choices

ROWS = [
    {"context": "the old man", "choices": ["walks home", "sees a dog ."], "answer": 1},
    {"context": "a dog", "choices": ["men", "women", "walk ."], "answer": 0},
]
EXAMPLES = [
    {**row, "choices": json.dumps(row["choices"]), "answer": str(row["answer"])} for row in ROWS
]
DECODE = DecodeConfig(batch_size=2, num_outputs=2)


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    changes = {"model.architecture": "decoder_only", "model.max_length": 32, "data.max_length": 32}
    return lambda name: task_with(tokenizers_of("byte_bpe"), name, changes)


@pytest.fixture(scope="module")
def task(build):
    return build("choices")


@pytest.fixture(scope="module")
def expected(build, params):
    """log P of each choice under a language model with the same parameters."""
    model = build("language_modeling")
    return [
        [
            one.log_prob
            for one in model.score(
                params,
                [row["context"]] * len(row["choices"]),
                [f" {choice}" for choice in row["choices"]],
                1,
            )
        ]
        for row in ROWS
    ]


def test_the_likeliest_choice_is_the_answer(task, params, expected):
    metrics, outputs = task.evaluate(params, EXAMPLES, DECODE)
    best = [int(np.argmax(found)) for found in expected]
    right = [choice == row["answer"] for choice, row in zip(best, ROWS, strict=True)]
    assert metrics["accuracy"] == np.mean(right) and 0 <= metrics["accuracy_by_length"] <= 1
    wanted = [row["choices"][choice] for row, choice in zip(ROWS, best, strict=True)]
    assert [output.text for output in outputs] == wanted
    scores = [output.score for output in outputs]
    assert scores == pytest.approx([max(found) for found in expected], rel=1e-5)


def test_each_line_is_answered(task, params, expected, caplog):
    lines = [json.dumps({key: row[key] for key in ("context", "choices")}) for row in ROWS]
    found = list(task.predict(params, lines, DECODE))
    assert [len(outputs) for outputs in found] == [2, 2]
    for outputs, log_probs in zip(found, expected, strict=True):
        ranked = sorted(log_probs, reverse=True)[:2]
        assert [output.score for output in outputs] == pytest.approx(ranked, rel=1e-5)
    with pytest.raises(UserError, match=r"line 8: this is no JSON .* write {\"context\": text"):
        next(task.predict(params, ["the dog"], DECODE, first_line=8))
    long = json.dumps({"context": "the old man " * 9, "choices": ["walks", "sees"]})
    list(task.predict(params, [lines[0], long], DECODE, first_line=8))
    (told,) = caplog.messages
    assert told.startswith("line 9 has ") and "its first" in told


def test_training_counts_the_right_choice_alone(task):
    rows = task.prepare(EXAMPLES, training=True)
    decode = task.tokenizers["text"].decode
    for row, text in zip(rows, [" sees a dog .", " men"], strict=True):
        assert decode(row["target"][row["counted"] > 0]) == text
    assert decode(rows[0]["target"]) == "the old man sees a dog ."


def test_a_language_model_is_scored_by_a_file(build, task, params, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    found = evaluate_choices(build("language_modeling"), params, str(path), DECODE)
    assert found == {
        **task.evaluate(params, EXAMPLES, DECODE)[0],
        "num_examples": 2,
        "split": "a.jsonl",
    }
    with pytest.raises(UserError, match="--choices asks for a language model"):
        evaluate_choices(task, params, str(path), DECODE)
