# SPDX-License-Identifier: Apache-2.0
"""Tokens drawn at random: every task trains on the same text, labels and loss mask."""

import dataclasses

import numpy as np
import pytest

from tests.tasks.conftest import TURNS
from transformer_jax.conversations import conversation_to_json, parse_conversation
from transformer_jax.data.examples import Corpora
from transformer_jax.tasks.base import LabelingTask, preprocess_sampled
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.parsing import tree_symbols
from transformer_jax.tasks.teachers import StoredTeacher
from transformer_jax.tokenization import NUM_SPECIALS, SymbolTokenizer, Tokenizers

DECODER = {"model.architecture": "decoder_only", "model.max_length": 96, "data.max_length": 96}
ENCODER = DECODER | {"model.architecture": "encoder_only"}
SAID = {"instruction": "the old man", "output": "sees a dog"}
EXAMPLES = {
    "classification": {"text": "the old man", "pair": "sees the dog", "label": "N"},
    "tagging": {"text": "the young woman walks", "tags": "D N N V"},
    "choices": {"context": "the man", "choices": '["walks", "sees a dog"]', "answer": "1"},
    "instruction": {"turns": conversation_to_json(parse_conversation(SAID))},
    "translation": {"source": "the old man sees a dog", "target": "a dog sees the woman"},
    "parsing": {"source": "the old man", "target": "(TOP (NP (D the) (J old) (N man)))"},
}
PAIRS = {"model.max_length": 96, "data.max_length": 16}
PAIRS |= {"data.max_source_length": 96, "data.max_target_length": 96}
CHANGES = {
    "classification": ENCODER,
    "tagging": ENCODER,
    "choices": DECODER,
    "instruction": DECODER | TURNS,
    "translation": PAIRS,
    "parsing": PAIRS | {"model.tie_embeddings": "none"},
}
LABELS = {"classification": "label", "tagging": "tags"}


@pytest.fixture(params=EXAMPLES)
def sampled(request, tokenizers_of, task_with):
    """A task whose tokens are drawn, and an item."""
    name = request.param
    labels = ((LABELS[name], ("D", "N", "V")),) if name in LABELS else ()
    tokenizers = tokenizers_of("byte_bpe", labels)
    if CHANGES[name].items() >= PAIRS.items():
        tokenizers = Tokenizers(dict.fromkeys(("source", "target"), tokenizers.text("text")))
    if name == "parsing":
        symbols = SymbolTokenizer(sorted(tree_symbols(TaskConfig(), [EXAMPLES[name]["target"]])))
        tokenizers = Tokenizers(tokenizers.sides | {"target": symbols})
    sampling = {"tokenizer.kind": "byte_bpe", "tokenizer.sampling": 0.4}
    task = task_with(tokenizers, name, CHANGES[name] | sampling)
    return task, task.prepare([EXAMPLES[name]], training=True)[0]


def texts(task, features):
    """Text that the model reads and that is in the loss, and the labels."""
    tokenizer = next(iter(task.tokenizers.sides.values()))
    whole = ["target" if name == "input" else name for name in task.read]
    found = {name: tokenizer.decode(features[name]) for name in whole}
    if "counted" in features:
        found["counted"] = tokenizer.decode(features["target"][features["counted"] > 0])
    if "tags" in features:
        firsts = np.flatnonzero(features["tags"])
        found["words"] = [tokenizer.decode(word) for word in np.split(features["text"], firsts)]
        found["tags"] = features["tags"][firsts].tolist()
    if "label" in features:
        found["label"] = features["label"].tolist()
    return found


def test_drawn_tokens_are_of_the_same_text(sampled):
    task, item = sampled
    usual = task.preprocess(item, np.random.default_rng(0))
    drawn = [preprocess_sampled(task, item, np.random.default_rng(seed)) for seed in range(4)]
    for features in drawn:
        assert texts(task, features) == texts(task, usual)
        for name in task.read:
            assert (features[name] < NUM_SPECIALS).sum() == (usual[name] < NUM_SPECIALS).sum()
    assert len({features[task.read[0]].tobytes() for features in drawn}) > 1
    again = preprocess_sampled(task, item, np.random.default_rng(3))
    for name, values in drawn[3].items():
        np.testing.assert_array_equal(values, again[name])


def test_corpora_keep_their_weights(request, sampled):
    task, _ = sampled
    example = EXAMPLES[request.node.callspec.params["sampled"]]
    weighted = Corpora(([example], [example] * 2), (3.0, 1.0))
    starts = np.arange(3)
    items = task.prepare(weighted, training=True)
    for kept in (items, StoredTeacher(None, starts, "").numbered(items)):
        assert kept.weights == (3.0, 1.0) and [*map(len, kept.parts)] == [1, 2]
    assert [start for _, start in kept] == [*starts]


def test_an_example_whose_drawn_tokens_do_not_fit_keeps_its_usual_ones(sampled):
    task, item = sampled
    usual = task.preprocess(item, np.random.default_rng(0))
    lengths = {name: len(values) for name, values in usual.items()}
    room = {f"max_{side}_length": lengths.get(side) for side in ("source", "target")}
    if "source" not in lengths:
        room = {"max_length": max(lengths.values())}
    tight = dataclasses.replace(task, **room)
    for seed in range(4):
        features = preprocess_sampled(tight, item, np.random.default_rng(seed))
        assert all(len(features[name]) <= length for name, length in tight.lengths.items())
        if not isinstance(task, LabelingTask):  # which cuts texts, and fills the row
            for name, values in usual.items():
                np.testing.assert_array_equal(features[name], values)
