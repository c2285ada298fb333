# SPDX-License-Identifier: Apache-2.0
"""Fixtures: tokenizers of a small text, and small tasks with the default config."""

import collections
import dataclasses
import functools

import pytest

from tests.tasks import compiled
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import Origin
from transformer_jax.tokenization import Labels, TokenizerConfig, train_tokenizers

TEXT = (
    "the old man sees a dog .\nthe dog sees the old man .\n\n"
    "a young woman walks home with a dog .\nmen and women walk .\n"
)
MODEL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "positions": "learned", "max_length": 16}
MODEL |= dict.fromkeys(("num_layers", "num_encoder_layers", "num_decoder_layers"), 1)
MODEL |= {"dtype": "float32"}
TURNS = {
    **{"task.template": None, "task.system_turn": "{content}\n"},
    **{"task.user_turn": "Q: {content}\n", "task.assistant_turn": "A: {content}{eos}\n"},
}


@pytest.fixture(scope="session")
def tokenizers_of(tmp_path_factory):
    """`tokenizers_of(kind, labels={})`: tokenizers of the side "text"."""

    @functools.cache
    def make(kind, labels=()):
        sizes = {"char": 64, "wordpiece": 60, "byte_bpe": 300}
        normalization = "identity" if kind == "char" else "nmt_nfkc"
        config = TokenizerConfig(kind, vocab_size=sizes[kind], normalization=normalization)
        texts = {"text": TEXT.splitlines(keepends=True)}
        directory = tmp_path_factory.mktemp("tokenizer") / kind
        return train_tokenizers(config, texts, directory, dict(labels))

    return make


@pytest.fixture(scope="session")
def task_with():
    """`task_with(tokenizers, name, {"section.field": value}, section__field=value)`: a task with a
    small model."""

    def make(tokenizers, name, changes, **fields):
        changes = changes | {field.replace("__", "."): value for field, value in fields.items()}
        given = {"task": {"name": name}, "model": dict(MODEL), "data": {"max_length": 16}}
        given["train"] = {"label_smoothing": 0.0}
        for field, value in changes.items():
            section, _, field = field.partition(".")
            given.setdefault(section, {})[field] = value
        settings = read_settings(given, {}, Origin("loaded run", "test"))
        return build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)

    return make


@pytest.fixture(scope="module")
def task(build):
    """The usual task of a module."""
    return build()


@pytest.fixture(scope="module")
def params(task, random_params):
    """Drawn parameters of the module's task."""
    return random_params(task)


@pytest.fixture(scope="session")
def features_of():
    """`features_of(task, examples)`: features of each example."""

    def make(task, examples):
        items = task.prepare(examples, training=False)
        return [task.preprocess(item, None) for item in items]

    return make


@pytest.fixture(scope="session")
def batches_of():
    """`batches_of(task, examples, rows=1)`: evaluation batches of the examples."""

    def make(task, examples, rows=1):
        prepared = task.prepare(examples, training=False)
        return eval_batches(prepared, task.preprocess, lengths=task.lengths, rows=rows)

    return make


@pytest.fixture(scope="session")
def sums_of(batches_of):
    """`sums_of(task, params, examples)`: loss, weight and other sums over all examples."""

    def make(task, params, examples):
        total = collections.Counter()
        for batch in batches_of(task, examples):
            loss, weight, sums = compiled.loss_sums(task, params, batch)
            for name, value in {**sums, "loss": loss, "weight": weight}.items():
                total[name] += float(value)
        return dict(total)

    return make


DECODER, ENCODER = ({"model.architecture": f"{name}_only"} for name in ("decoder", "encoder"))
CHAT = DECODER | TURNS | {"model.max_length": 64, "data.max_length": 64}
SMALL_TASKS = {
    "language_modeling": ("char", DECODER, ()),
    "instruction": ("byte_bpe", CHAT, ()),
    "masked_lm": ("wordpiece", ENCODER, ()),
    "classification": ("wordpiece", ENCODER, ("label",)),
    "tagging": ("wordpiece", ENCODER, ("tags",)),
}
"""Tasks that read one text: tokenizer, config changes, and sides with labels."""


@pytest.fixture(scope="module")
def run_of(task_with, tokenizers_of, trained, random_params):
    """`run_of(task)`: the module's run of the task, with a small model."""

    @functools.cache
    def make(name):
        if name == "translation":
            return trained
        kind, changes, labels = SMALL_TASKS[name]
        tokenizers = tokenizers_of(kind)
        sides = tokenizers.sides | {side: Labels(("A", "B")) for side in labels}
        task = task_with(dataclasses.replace(tokenizers, sides=sides), name, changes)
        return dataclasses.replace(trained, task=task, params=random_params(task))

    return make
