# SPDX-License-Identifier: Apache-2.0
"""A vocabulary with other ids of special tokens gives the same model, in losses and searches.

The words are in the same order, once after special tokens with the project's ids, once with special
tokens between and after them. The rows of the model's tables are permuted in the same way: losses,
outputs and scores must be equal.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.tasks import compiled
from tests.tasks.conftest import TEXT
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.tokenization import store_tokenizers
from transformer_jax.tokenization.published import import_tokenizer
from transformer_jax.tokenization.specials import BOS, EOS, MASK, PAD, UNK

SPECIAL = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS, "mask": MASK}
WORDS = sorted(set(TEXT.split()))
PERMUTED = {"eos": 0, "mask": 3, "bos": 7, "unk": 11, "pad": len(WORDS) + 4}
PAIRS = [
    {"source": "the old man sees", "target": "a dog sees"},
    {"source": "women walk", "target": "men walk with the old dog"},
    {"source": "a dog", "target": "the young woman walks home"},
]
DOCUMENTS = [{"text": pair["source"] + " " + pair["target"]} for pair in PAIRS]


def vocabulary(special, spared=()):
    """Piece -> id: words get the ids that special tokens leave, in order."""
    written = {i: f"<{role}>" for role, i in special.items() if role not in spared}
    free = (i for i in range(len(WORDS) + len(special)) if i not in special.values())
    return {piece: i for i, piece in written.items()} | dict(zip(WORDS, free, strict=True))


@pytest.fixture(scope="module")
def tokenizers_at(tmp_path_factory):
    """`tokenizers_at(sides, special, **ids)`: tokenizers with these ids of special tokens."""

    def make(sides, special, spared=(), rows=None, **ids):
        folder = tmp_path_factory.mktemp("tokenizer")
        words = Tokenizer(models.WordLevel(vocabulary(special, spared), unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.add_special_tokens([f"<{role}>" for role in special if role not in spared])
        words.save(str(folder / "tokenizer.json"))
        roles = {"first": special["eos"], "cls": special["bos"], "head": (), **special, **ids}
        contents = {side: import_tokenizer(folder, side, roles, rows) for side in sides}
        return store_tokenizers("file", contents, folder / "stored")

    return make


@pytest.fixture(scope="module")
def both(tokenizers_at, task_with):
    """Tasks with the project's ids and with others, and the permutation of the vocabulary."""

    def make(name, changes):
        sides = ("source", "target") if name == "translation" else ("text",)
        tasks = [task_with(tokenizers_at(sides, at), name, changes) for at in (SPECIAL, PERMUTED)]
        own, other = vocabulary(SPECIAL), vocabulary(PERMUTED)
        order = np.argsort([other[piece] for piece in sorted(own, key=own.__getitem__)])
        return tasks, order

    return make


def drawn(task, seed=1):
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(leaf.dtype), shapes)


def permuted(params, order):
    """Parameters with the rows of the vocabulary permuted."""
    return jax.tree.map(lambda x: x[order] if x.shape[:1] == order.shape else x, params)


CASES = {
    "translation": (
        {
            "model.tie_embeddings": "all",
            "model.num_encoder_layers": 1,
            "model.num_decoder_layers": 1,
            "model.max_length": 64,
            "data.max_source_length": 16,
            "data.max_target_length": 16,
        },
        PAIRS,
        ["a young dog", "", "the man walks"],
        DecodeConfig(beam_size=3, num_outputs=2, max_extra_length=6),
    ),
    "language_modeling": (
        {"model.architecture": "decoder_only", "data.packing": "apart"},
        DOCUMENTS,
        ["a young dog", "", "the man <eos> walks"],
        DecodeConfig(beam_size=1, max_extra_length=20, repetition_penalty=1.3),
    ),
    "masked_lm": (
        {"model.architecture": "encoder_only", "model.num_token_types": 2, "task.mask_rate": 0.4},
        DOCUMENTS,
        ["a <mask> dog", "no blank", "<mask> man <mask>"],
        DecodeConfig(num_outputs=3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_special_tokens_may_have_any_id(both, sums_of, name):
    changes, examples, lines, decode = CASES[name]
    (own, other), order = both(name, changes)
    params = drawn(own)
    reordered = permuted(params, order)
    sums = sums_of(own, params, examples)
    assert sums["loss"] > 0
    assert sums_of(other, reordered, examples) == pytest.approx(sums, rel=1e-5)
    expected = [*own.predict(params, lines, decode)]
    outputs = [*other.predict(reordered, lines, decode)]
    assert texts(outputs) == texts(expected) and any(any(line) for line in texts(expected))
    for line, same in zip(outputs, expected, strict=True):
        scores = [one.score for one in same]
        np.testing.assert_allclose([one.score for one in line], scores, rtol=1e-3, atol=1e-4)


def texts(outputs):
    return [[one.text for one in line] for line in outputs]


def test_padding_may_be_the_token_that_ends_a_text(tokenizers_at, task_with):
    """The model is the same with a separate padding token and without."""
    changes, examples, lines, decode = CASES["translation"]
    sides, count = tuple(examples[0]), len(WORDS) + len(SPECIAL)
    special = {**SPECIAL, "pad": count - 1, "mask": PAD}
    of_its_own = tokenizers_at(sides, special, spared=("pad",), rows=count)
    the_end = tokenizers_at(sides, special, spared=("pad",), rows=count, pad=special["eos"])
    one, two = (task_with(each, "translation", changes) for each in (of_its_own, the_end))
    side = one.tokenizers.text(sides[-1]).specials
    assert count - 1 in side.banned and side.pad == count - 1
    assert two.tokenizers.text(sides[-1]).specials.pad == special["eos"]
    params = drawn(one)
    found, same = ([*task.predict(params, lines, decode)] for task in (one, two))
    assert found == same and any(any(line) for line in texts(found))


def test_a_forced_head_is_in_the_target_and_in_the_prompt_but_is_not_predicted(
    tokenizers_at, task_with, features_of, batches_of
):
    """The head is BART's: </s> <s> text </s>."""
    changes, examples, lines, decode = CASES["translation"]
    tokenizers = tokenizers_at(("source", "target"), SPECIAL, start=EOS, head=(BOS,))
    task = task_with(tokenizers, "translation", changes)
    features, *_ = features_of(task, PAIRS)
    for side in ("source", "target"):
        text = tokenizers.text(side).encode(PAIRS[0][side])
        assert features[side].tolist() == [BOS, *text, EOS]
    params = drawn(task, seed=3)  # whose outputs end
    (batch,) = batches_of(task, examples, rows=4)
    _, weight, _ = compiled.loss_sums(task, params, batch)
    assert weight == sum(len(pair["target"].split()) + 1 for pair in PAIRS)
    plain = dataclasses.replace(decode, num_outputs=3, alpha=0.0)
    outputs = next(task.predict(params, lines, plain))
    ended = [one for one in outputs if len(one.text.split()) < 8]
    scores = task.score(params, [lines[0]] * len(ended), [one.text for one in ended], 4)
    found = [pair.log_prob for pair in scores]
    assert ended and found == pytest.approx([one.score for one in ended], rel=1e-4)


def test_equal_stored_vocabularies_are_shared(tokenizers_at):
    same = tokenizers_at(("source", "target"), SPECIAL)
    assert same["source"] is same["target"]
    stored = json.loads(same.text("source").content)
    assert stored["files"].keys() == {"tokenizer.json"}
