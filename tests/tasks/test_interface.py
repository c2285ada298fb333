# SPDX-License-Identifier: Apache-2.0
"""A task with the members of the protocol and nothing else works like the built-in ones."""

import dataclasses
import functools
from itertools import batched
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.losses import token_losses
from transformer_jax.metrics import compute_metrics
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.runs.config import override, read_settings
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Origin
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import Prediction, TaskKind
from transformer_jax.tasks.losses import packed_loss, row_inputs
from transformer_jax.tokenization import Tokenizers
from transformer_jax.tokenization.specials import EOS, PAD

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.py"


@dataclasses.dataclass(frozen=True)
class Copying:
    """Task of repeating {"text": str}: after EOS text EOS the model writes text EOS."""

    model: DecoderOnly
    tokenizers: Tokenizers
    max_length: int
    read: ClassVar = ("input",)
    best_by: ClassVar = "copied"

    @property
    def lengths(self):
        return {"input": self.max_length, "target": self.max_length}

    @classmethod
    def build(cls, parts):
        length, sizes = parts.data.max_length, parts.vocab_sizes
        model = parts.make_model(DecoderOnly, reach=length, vocab_size=sizes["text"])
        return cls(model, parts.tokenizers, length)

    @functools.cached_property
    def generator(self):
        return TokenGenerator(self.model, self.max_length, self.tokenizers.text("text").specials)

    def init(self, rng):
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row)["params"]

    def prepare(self, examples, training):
        return examples

    def preprocess(self, example, rng):
        text = self.tokenizers.text("text").encode(example["text"])[: self.max_length // 2 - 1]
        row = np.array([EOS, *text, EOS, *text, EOS], np.int32)
        target = row[1:].copy()
        target[: len(text) + 1] = PAD
        return {"input": row[:-1], "target": target}

    def loss(self, params, batch, rng, frozen):
        logits = apply_model(self.model, params, *row_inputs(batch, "input"), rng=rng)
        found = token_losses(logits, batch["target"])
        return packed_loss(batch, self.read, found, batch["target"] != PAD)

    def metrics(self, sums, examples):
        return compute_metrics(sums)

    def evaluate(self, params, examples, decode):
        texts = [example["text"] for example in examples]
        outputs = [found[0] for found in self.predict(params, texts, decode)]
        copied = [one.text == text for one, text in zip(outputs, texts, strict=True)]
        return {"copied": float(np.mean(copied))}, outputs

    def predict(self, params, lines, decode, first_line=1):
        text = self.tokenizers.text("text")
        prompts = [[EOS, *text.encode(line), EOS] for line in lines]
        outputs = [Output(prompt, number, 0) for number, prompt in enumerate(prompts, first_line)]
        for batch in batched(outputs, decode.batch_size):
            list(self.generator.generate(params, batch, decode))
        for output in outputs:
            yield [Prediction(text.decode(output.tokens), output.log_prob)]


@pytest.fixture
def config(tiny_language_model, with_entries):
    """Config of a run of 8 steps; the task is registered during the test only."""
    with_entries(TASKS, {"copying": TaskKind(Copying.build, {"text": ("text",)})})
    changes = {
        "task.name": "copying",
        "model.dropout_rate": 0.0,
        "train.num_steps": 6,
        "eval.every_steps": 6,
        "checkpoint.every_steps": 6,
        "data.max_length": 32,
        "decode.max_extra_length": 4,
    }
    return tj.config(QUICKSTART, tiny_language_model | changes)


def test_it_trains_evaluates_and_predicts(config, tmp_path):
    assert tj.train(config, tmp_path / "run").step == 6
    loaded = tj.load(tmp_path / "run", checkpoint="best")
    assert isinstance(loaded.task, Copying)
    assert len(loaded.predict(["the dog", ""])) == 2
    metrics = loaded.evaluate(split="valid")
    assert metrics["copied"] == 0.0 and metrics["loss"] > 0 and metrics["step"] == 6


def test_missing_abilities_are_refused(config, tmp_path, tokenizers_of, task_with):
    task = task_with(tokenizers_of("char"), "copying", {"model.architecture": "decoder_only"})
    run = Run(read_settings(config), tmp_path, task, params={}, step=0)
    assert_refused(
        {
            "score: this run's task does not score pairs": lambda: run.score(["a"], ["a"]),
            "this run's task has no pairs of source": lambda: run.evaluate(source="a", target="b"),
            "stream: this run's task does not continue text": lambda: run.stream("a"),
            "this run's task cannot start its": lambda: run.predict(["a"], prefixes=["b"]),
        }
    )


def test_the_defaults_of_each_task_are_fields_with_values_of_their_types():
    settings = read_settings({}, {}, Origin("loaded run", "test"))
    for name, kind in TASKS.items():
        changed = override(settings, {**kind.defaults, "task.name": name})
        for field, value in kind.defaults.items():
            assert changed.values[field] == value


def test_a_metric_is_refused_if_the_task_compares_no_texts(tokenizers_of, task_with):
    changes = {"task.metric": "bleu", "model.architecture": "decoder_only"}
    with pytest.raises(tj.UserError, match="config.task.metric is 'bleu', but task language_model"):
        task_with(tokenizers_of("char"), "language_modeling", changes)
    known = "metric is 'blue', not one of bleu, bleu_lowercase, exact_match"
    with pytest.raises(tj.UserError, match=f"config.task: {known}"):
        task_with(tokenizers_of("char"), "translation", {"task.metric": "blue"})
