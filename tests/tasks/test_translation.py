# SPDX-License-Identifier: Apache-2.0
"""Translation: the loss, predictions, and their scores under the model."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from tests.tasks import compiled
from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.seq2seq_search import Request
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.scoring import METRICS
from transformer_jax.scoring.text import score_translations
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers
from transformer_jax.tokenization.specials import BOS, EOS, PAD, UNK

DECODE = DecodeConfig(beam_size=3, num_outputs=3, batch_size=8, max_extra_length=4)
"""Of any lines here, one batch, which has one program."""


@pytest.fixture(scope="module")
def examples():
    pairs = open_split(DataConfig(synthetic_size=300), "train")
    short = [pair for pair in pairs if pair["target"].count(" ") < 8]
    long = [pair for pair in pairs if 12 < pair["target"].count(" ") < 16]
    return short[:2] + long[:1] + short[2:5] + pairs


@pytest.fixture(scope="module")
def settings(tiny_config):
    return read_settings(tiny_config({"data.max_source_length": 40, "train.label_smoothing": 0.3}))


@pytest.fixture(scope="module")
def task(settings, examples, tmp_path_factory):
    texts = {side: [example[side] for example in examples] for side in ("source", "target")}
    config = TokenizerConfig(vocab_size=800)
    tokenizers = train_tokenizers(config, texts, tmp_path_factory.mktemp("run") / "tokenizer")
    return build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)


@pytest.fixture(scope="module")
def loss(task):
    return jax.jit(lambda params, batch, rng=None: task.loss(params, batch, rng, {}))


@pytest.fixture(scope="module")
def pack(features_of):
    def packed_rows(task, examples, rows=3):
        features = features_of(task, examples)
        [batch] = eval_batches(features, lambda item, _: item, lengths=task.lengths, rows=rows)
        return batch

    return packed_rows


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), left, right)


# --- Features and loss ---


def test_both_sides_become_tokens_that_end_in_eos(task, features_of):
    example = {"source": "the old man", "target": "der alte Mann"}
    features, nothing = features_of(task, [example, {"source": "", "target": ""}])
    for side in ("source", "target"):
        assert features[side].dtype == np.int32
        *tokens, last = features[side].tolist()
        assert last == EOS
        assert task.tokenizers[side].decode(tokens) == example[side]
        assert EOS not in tokens
        assert nothing[side].tolist() == [EOS]


def test_the_loss_of_a_packed_batch_is_that_of_each_sentence_alone(
    task, params, loss, examples, pack, features_of
):
    packed = pack(task, examples[:5])
    assert packed["source_segment_ids"].max() > 1
    padded = padded_batch(features_of(task, examples[:5]))
    total, weight, sums = loss(params, packed)
    expected_total, expected_weight, expected_sums = loss(params, padded)
    assert weight == expected_weight
    assert_close(total, expected_total)
    for name in ("tokens", "nll", "correct", "filled"):
        assert_close(sums[name], expected_sums[name])


@pytest.fixture(scope="module")
def log_softmax_of(task, params):
    """log P(next token) after each prefix of one pair, [T, V] in double precision."""

    def log_softmax(example):
        sides = (example["source"], [BOS, *example["target"][:-1]])
        rows = [array for tokens in sides for array in compiled.padded_row(tokens, 40)]
        logits = np.asarray(compiled.logits(task, params, *rows)[0, : len(sides[1])], np.float64)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    return log_softmax


def test_the_loss_by_hand(task, params, loss, examples, log_softmax_of, features_of):
    """Of as many examples as above, whose program it shares."""
    expected = collections.Counter()
    features = features_of(task, examples[:5])
    for example in features:
        log_probs, target = log_softmax_of(example), example["target"]
        of_labels = log_probs[np.arange(len(target)), target]
        expected["loss"] -= (0.7 * of_labels + 0.3 * log_probs.mean(axis=-1)).sum()
        expected["nll"] -= of_labels.sum()
        expected["correct"] += (log_probs.argmax(axis=-1) == target).sum()
        expected["tokens"] += len(target)
        expected["filled"] += len(example["source"]) + len(target)
    batch = padded_batch(features)
    total, weight, sums = loss(params, batch)
    assert weight == expected["tokens"]
    assert {name: float(value) for name, value in sums.items()} | {"loss": float(total)} == (
        pytest.approx(expected | {"slots": sum(batch[side].size for side in example)}, rel=1e-5)
    )


# --- Scores of given translations ---


def test_a_score_is_the_log_probability_of_the_target(
    task, params, examples, log_softmax_of, features_of
):
    pairs = examples[:2]
    expected = []
    for features in features_of(task, pairs):
        log_probs = log_softmax_of(features)
        expected.append(log_probs[np.arange(len(log_probs)), features["target"]].sum())
    sides = ([example[side] for example in pairs] for side in ("source", "target"))
    found = task.score(params, *sides, batch_size=3)
    assert [pair.log_prob for pair in found] == pytest.approx(expected, rel=1e-5)
    assert task.score(params, [], [], batch_size=3) == []


def test_a_target_of_likeliest_tokens_is_greedy(
    task, params, examples, log_softmax_of, features_of
):
    """Tokens are compared, because the text of an output may have other pieces."""
    source = features_of(task, examples[:1])[0]["source"]
    written = []
    for _ in range(4):
        log_probs = log_softmax_of({"source": source, "target": [*written, EOS]})
        written.append(int(log_probs[-1].argmax()))
    changed = [*written[:-1], written[-1] + 1]
    pairs = [{"source": source, "target": target} for target in (written, changed)]
    _, is_greedy = task.scores(params, padded_batch(pairs))
    assert is_greedy.tolist() == [True, False]


# --- Predictions ---


@pytest.fixture(scope="module")
def short(examples):
    """Five short examples, whose searches share programs."""
    return [*examples[:2], *examples[3:6]]


@pytest.fixture(scope="module")
def n_best(task, params, short):
    """(lines, predictions of each line)."""
    lines = [example["source"] for example in short]
    return lines, list(task.predict(params, lines, DECODE))


def test_the_tree_of_a_line_has_its_outputs(task, params, n_best):
    (line, *_), (expected, *_) = n_best
    tree = task.beam_tree(params, line, DECODE)
    for output, found in zip(tree.outputs, expected, strict=True):
        node, written = tree.nodes[output], ""
        assert node.score == pytest.approx(found.score, rel=1e-5)
        while node.parent is not None:
            written, node = node.token + written, tree.nodes[node.parent]
        assert written.removesuffix("</s>").replace("▁", " ").strip() == found.text


def test_a_prediction_has_the_score_of_its_tokens(task, params, n_best):
    source = [*task.tokenizers["source"].encode(n_best[0][0]), EOS]
    tokens, scores = task.search(params, [Request(source)], DECODE)
    outputs = [row[row != PAD] for row in tokens[0]]
    pairs = [{"source": source, "target": output} for output in outputs]
    log_probs, _ = task.scores(params, padded_batch(pairs))
    for output, score, log_prob in zip(outputs, scores[0], log_probs, strict=True):
        assert len(output) <= len(source) + DECODE.max_extra_length
        assert not set(output.tolist()) & {UNK, BOS}
        assert score == pytest.approx(float(log_prob) / ((5 + len(output)) / 6) ** 0.6, rel=1e-4)


def test_blank_lines_stay_in_their_places(task, params, n_best, caplog):
    (line, *_), (expected, *_) = n_best
    found = list(task.predict(params, ["", line, " \t"], DECODE, first_line=11))
    assert [[tuple(one) for one in found[i]] for i in (0, 2)] == [[("", 0.0)]] * 2
    assert [one.text for one in found[1]] == [one.text for one in expected]
    several = "2 of 3 lines are blank, and so are their outputs: 11, 13"
    assert caplog.messages == [several]
    assert list(task.predict(params, [], DECODE)) == []


def test_a_very_long_line_is_cut_with_a_warning(task, caplog):
    line = "man " * 150
    with collect_warnings() as warnings:
        source = task._encode_source(line, warnings.about(7))
    assert source == task._encode_source(line + "man", LineWarnings())
    assert (len(source), source[-1]) == (40, EOS)
    told = f"line 7 has {len(task.tokenizers['source'].encode(line))} tokens; only the first 39"
    assert caplog.messages == [f"{told} are read (data.max_source_length is 40)"]


def test_a_line_that_just_fits_is_not_cut(task):
    tokens = task.tokenizers["source"].encode("man " * 50)
    text = task.tokenizers["source"].decode(tokens[:39])
    assert task.tokenizers["source"].encode(text) == tokens[:39]
    assert task._encode_source(text, LineWarnings()) == [*tokens[:39], EOS]


def test_unknown_characters_are_translated_with_a_warning(task, params, caplog):
    [found] = task.predict(params, ["the \u6f22 man \u5b57"], DECODE, first_line=3)
    assert len(found) == DECODE.beam_size
    assert caplog.messages == ["line 3 has 2 pieces unknown to the tokenizer"]


def test_unknown_characters_of_a_prefix_are_left_out_with_a_warning(task, params, caplog):
    list(task.predict_with_prefixes(params, ["the man"], ["der \u6f22"], DECODE, first_line=3))
    assert caplog.messages == ["the prefix of line 3 has 1 pieces unknown to the tokenizer"]


def test_an_evaluation_scores_the_best_outputs(task, params, short, n_best):
    metrics, outputs = task.evaluate(params, short, DECODE)
    assert outputs == [found[0] for found in n_best[1]]
    references = [example["target"] for example in short]
    assert metrics == score_translations([one.text for one in outputs], references)
    assert task.best_by in metrics


def test_outputs_start_with_their_prefixes(task, params, n_best):
    lines, (free, *_) = n_best
    prefixes = ["der alte Mann", "", "die Frau"]
    found = list(task.predict_with_prefixes(params, lines[:3], prefixes, DECODE))
    for outputs, prefix in zip(found, prefixes, strict=True):
        assert len(outputs) == DECODE.num_outputs
        assert all(output.text.startswith(prefix) for output in outputs)
    assert [one.text for one in found[1]] == [one.text for one in n_best[1][1]]
    assert [one.text for one in found[0]] != [one.text for one in free]


def test_a_metric_without_its_own_name_is_refused_before_training(task, short, with_entries):
    with_entries(METRICS, {"nameless": lambda outputs, references: {"other_name": 1.0}})
    nameless = dataclasses.replace(task, metric="nameless")
    with pytest.raises(UserError, match="'nameless' returns other_name, and no 'nameless'"):
        nameless.check_search(short, DECODE)


@pytest.mark.parametrize("section", [TaskConfig("seq2seq"), TaskConfig(metric="exact_match")])
def test_the_metric_can_be_chosen(settings, task, params, short, section):
    changed = dataclasses.replace(settings, task=section)
    sizes = build.vocab_sizes(task.tokenizers)
    exact = build.build_task(changed, sizes, task.tokenizers)
    metrics, outputs = exact.evaluate(params, short[:3], DECODE)
    assert metrics == {"exact_match": 0.0} and exact.best_by == "exact_match"
    pairs = zip(short[:3], outputs, strict=True)
    found = [{"source": example["source"], "target": one.text} for example, one in pairs]
    assert exact.evaluate(params, found, DECODE)[0] == {"exact_match": 1.0}
