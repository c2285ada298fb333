# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a split: decoded examples, loss metrics, and files of predictions."""

import json
import math

import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.errors import UserError
from transformer_jax.metrics import compute_metrics
from transformer_jax.tasks.interface import Prediction
from transformer_jax.training import evaluation
from transformer_jax.training.evaluation import Evaluator, write_predictions


class Echo:
    """A task whose example n has n + 1 tokens, each with the loss `params`, all predicted wrong."""

    lengths = {"tokens": 8}

    def prepare(self, examples, training):
        assert not training
        return examples

    def metrics(self, sums, examples):
        return compute_metrics(sums)

    def preprocess(self, example, rng):
        return {"tokens": np.ones(example + 1, np.int32)}

    def loss(self, params, batch, rng, frozen):
        assert rng is None, "dropout has no place in an evaluation"
        filled = (batch["tokens_segment_ids"] > 0).sum().astype(np.float32)
        sums = {"tokens": filled, "nll": filled * params / 2, "correct": filled * 0}
        return filled * params, filled, {**sums, "filled": filled, "slots": 16.0}

    def evaluate(self, params, examples, decode):
        return {"score": float(len(examples))}, [Prediction(str(n), decode) for n in examples]


def evaluator(examples, num_decoded=None):
    return Evaluator(Echo(), examples, decode=0.5, rows=2, num_decoded=num_decoded)


def test_the_loss_covers_the_whole_split_and_the_outputs_a_part():
    metrics, outputs = evaluator(range(7), num_decoded=3)(4.0, {})
    assert outputs == [Prediction(str(n), 0.5) for n in (0, 3, 6)]
    assert (metrics["loss"], metrics["train_loss"]) == (2.0, 4.0)
    assert metrics["perplexity"] == pytest.approx(math.exp(2.0))
    assert metrics["accuracy"] == 0.0
    counts = metrics["num_examples"], metrics["num_all_examples"]
    assert (metrics["score"], *counts) == (3.0, 3, 7)
    num_batches = len(evaluator(range(7)).batches)
    assert metrics["padding"] == pytest.approx(1 - 28 / (16 * num_batches))


class Refusing(Echo):
    """A task that rejects example 5, and searches for the outputs of more than one example."""

    def preprocess(self, example, rng):
        if example == 5:
            raise UserError("label 5 was never seen in training")
        return super().preprocess(example, rng)

    def check_search(self, examples, decode):
        if len(examples) > 1:
            raise UserError(f"decode: {decode} is too much")

    def loss(self, params, batch, rng, frozen):
        pytest.fail("the model should not run")


def test_examples_that_cannot_be_evaluated_are_refused_beforehand():
    def check(examples, num_decoded=1):
        return Evaluator(Refusing(), examples, 0.5, rows=2, num_decoded=num_decoded).check

    check([1, 2, 3])()
    assert_refused(
        {
            "no examples to evaluate: the source is empty": check([]),
            "each of the 2 examples is longer than a row": check([8, 9]),
            "label 5 was never seen in training": check([1, 5]),
            "decode: 0.5 is too much": check([1, 2, 3], 2),
        }
    )


def test_decoded_examples_are_spread_evenly():
    chosen = {None: [0, 1, 2, 3], 9: [0, 1, 2, 3], 2: [0, 3], 1: [0]}
    for num_decoded, examples in chosen.items():
        assert evaluator([0, 1, 2, 3], num_decoded).decoded_examples == examples


def test_examples_too_long_for_the_loss_are_counted():
    assert "overlong" not in evaluator([1, 2])(1.0, {})[0]
    metrics, outputs = evaluator([1, 20, 2])(1.0, {})
    assert (metrics["overlong"], metrics["num_loss_examples"]) == (1, 2)
    assert len(outputs) == 3


def test_predictions_are_written_with_their_examples(tmp_path):
    path = tmp_path / "predictions" / "test-7.jsonl"
    write_predictions(path, [{"source": "a"}], [], {})  # a task that puts out nothing
    assert not path.exists()
    examples = [{"source": "a", "target": "ä"}, {"source": "\ud800", "target": "\n"}]
    write_predictions(path, examples, [Prediction("ö", -0.5), Prediction("", 0.0)], {"step": 7})
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[0] == '{"source": "a", "target": "ä", "output": "ö", "score": -0.5}'
    assert json.loads(lines[1]) == {**examples[1], "output": "", "score": 0.0}
    assert lines[2:] == [""]
    assert json.loads((path.parent / "test-7.json").read_text()) == {"step": 7}
    with pytest.raises(ValueError):  # interrupted: what is there has no known origin
        write_predictions(path, [], [Prediction("", 0.0)], {"step": 7})
    assert path.exists() and not (path.parent / "test-7.json").exists()


def test_scores_of_a_command_do_not_take_the_names_of_others(caplog):
    command = """printf '{"bleu": 1, "comet": 0.5}'"""
    metrics = evaluation.add_command_scores(command, {"bleu": 30.0}, [{}], [Prediction("", 0.0)])
    assert metrics == {"bleu": 30.0, "comet": 0.5}
    assert caplog.messages == ["left out bleu of the command: names of the run's own metrics"]
