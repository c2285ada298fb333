# SPDX-License-Identifier: Apache-2.0
"""Parsing: outputs are trees over the words of their lines, with the model's own scores."""

import dataclasses

import jax
import pytest

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.scoring import PARSEVAL
from transformer_jax.scoring.parseval import parseval
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.parsing import tree_symbols
from transformer_jax.tokenization import SymbolTokenizer, TokenizerConfig, train_tokenizers
from transformer_jax.trees import parse_tree, tree_to_tokens, with_lookahead

TREES = [
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)))))",
    "(TOP (NP (NN home)))",
    "(TOP (FRAG (-LRB- -LRB-) (NP (NNS dogs)) (-RRB- -RRB-)))",
]
EXAMPLES = [{"source": " ".join(parse_tree(tree).words()), "target": tree} for tree in TREES]
DECODE = DecodeConfig(beam_size=3, num_outputs=2, batch_size=8, max_extra_length=4, alpha=0.0)
MODEL = {
    "model.architecture": "encoder_decoder",
    "model.num_layers": 6,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.positions": "sinusoidal",
    "model.tie_embeddings": "target",
    "data.max_source_length": 20,
    "data.max_target_length": 40,
}


@pytest.fixture(scope="module")
def task_of(task_with, tmp_path_factory):
    """`task_of(tree_words)`: a parser with this many words in the vocabulary of trees."""

    def make(tree_words):
        sources = {"source": [example["source"] for example in EXAMPLES]}
        found = tree_symbols(TaskConfig("parsing", tree_words=tree_words), TREES)
        directory = tmp_path_factory.mktemp("parser") / "tokenizer"
        config = TokenizerConfig("char", vocab_size=40)
        symbols = {"target": SymbolTokenizer(sorted(found))}
        tokenizers = train_tokenizers(config, sources, directory, symbols)
        return task_with(tokenizers, "parsing", MODEL)

    return make


@pytest.fixture(scope="module")
def task(task_of):
    return task_of(0)


def words_of(tree):
    return " ".join(parse_tree(tree).words())


def test_features_are_the_words_and_the_tokens_of_the_tree(task):
    features = task.preprocess(EXAMPLES[0], None)
    source, target = (task.tokenizers.text(side) for side in ("source", "target"))
    assert target.decode(features["target"].tolist()) == (
        "(TOP (S (NP DT NN ) (VP VBZ (NP DT NN ) ) ) )"
    )
    assert source.decode(features["source"].tolist()) == EXAMPLES[0]["source"]
    assert features["source"][-1] == features["target"][-1] == source.specials.eos


@pytest.mark.parametrize(
    "source, target, told",
    [
        ("home", "(TOP (NN home)", "is no tree: brackets that are not closed: 1"),
        ("a home", "(TOP (NN home))", "is no tree over the words 'a home'"),
    ],
)
def test_a_target_that_is_no_tree_over_the_source_is_refused(task, source, target, told):
    with pytest.raises(UserError, match=told):
        task.preprocess({"source": source, "target": target}, None)
    with pytest.raises(UserError, match=told):
        task.score({}, [source], [target], batch_size=1)


FLAT = {"temperature": 1.0, "beam_size": 4, "max_extra_length": 2}
"""Samples with the smallest output limit, which gives flat trees."""


@pytest.mark.parametrize("options", [{}, FLAT])
def test_outputs_are_trees_with_the_scores_that_the_model_gives_them(task, params, options):
    """Brackets are escaped."""
    lines = ["the dog sees", "", "home", "( a dog )"]
    decode = dataclasses.replace(DECODE, **options)
    found = list(task.predict(params, lines, decode))
    assert [len(outputs) for outputs in found] == [2, 1, 2, 2]
    assert found[1] == [("", 0.0)]
    for line, outputs in zip(lines, found, strict=True):
        expected = line.replace("(", "-LRB-").replace(")", "-RRB-")
        for output in outputs if line else []:
            assert words_of(output.text) == expected
            [(score, _)] = task.score(params, [line], [output.text], batch_size=1)
            assert output.score == pytest.approx(score, rel=1e-4)
    assert found[0][0].score >= found[0][1].score


def test_a_score_is_the_log_probability_of_the_tree(task, params):
    batch = padded_batch([task.preprocess(EXAMPLES[0], None)])
    _, _, sums = jax.jit(task.loss, static_argnums=2)(params, batch, None, {})
    [(score, _)] = task.score(params, [EXAMPLES[0]["source"]], [TREES[0]], batch_size=1)
    assert score == pytest.approx(-float(sums["nll"]), rel=1e-5)


def test_a_sentence_beyond_the_limit_is_parsed_in_parts(task, params, caplog):
    long = "the dog sees a cat " * 3
    lines = ["home", long, "a" * 50 + " dog"]
    found = list(task.predict(params, lines, DECODE, first_line=7))
    assert [words_of(outputs[0].text) for outputs in found] == [line.strip() for line in lines]
    assert len(found[1]) == 2
    list(task.predict(params, [long], DECODE, first_line=8))
    limit = "joined under one root (data.max_source_length is 20)"
    assert caplog.messages == [
        f"2 of 3 lines are too long: they are parsed in parts, {limit}: 8, 9",
        f"line 8 is too long: it is parsed in 3 parts, {limit}",
    ]


def test_the_evaluation_is_that_of_the_predictions(task, params):
    metrics, outputs = task.evaluate(params, EXAMPLES, DECODE)
    assert metrics == parseval([output.text for output in outputs], TREES)
    assert tuple(metrics) == PARSEVAL and task.best_by in metrics
    task.check_search(EXAMPLES, DECODE)


def test_the_inspected_tree_is_the_predicted_one(task, params):
    [[best, _]] = task.predict(params, ["the dog sees"], DECODE)
    reading = task.model_inputs(params, "the dog sees", None, DECODE)
    assert reading.texts == {"source": "the dog sees", "target": best.text}
    assert reading.tokens["decoder"][1:] == reading.outputs[:-1]
    given = task.model_inputs(params, EXAMPLES[0]["source"], TREES[0], DECODE)
    assert given.outputs == task.preprocess(EXAMPLES[0], None)["target"].tolist()
    tree = task.beam_tree(params, "the dog sees", DECODE)
    output = tree.nodes[tree.outputs[0]]
    assert output.score == pytest.approx(best.score, rel=1e-5)
    path, node = [], output
    while node.parent is not None:
        path, node = [node.token, *path], tree.nodes[node.parent]
    assert path[:-1] == tree_to_tokens(parse_tree(best.text))


def test_impossible_requests_are_refused(task, params):
    decode = dataclasses.replace(DECODE, max_extra_length=1)
    with pytest.raises(UserError, match="max_extra_length is 1, and a tree takes 2 tokens more"):
        list(task.predict(params, ["home"], decode))
    with pytest.raises(UserError, match="no word to parse"):
        task.model_inputs(params, " ", None, DECODE)
    assert hasattr(task, "score") and not hasattr(task, "predict_with_prefixes")


def test_with_words_in_the_vocabulary_the_decoder_reads_them(task_of, random_params):
    task = task_of(4)
    features = task.preprocess(EXAMPLES[0], None)
    classes = ["UNK-LC", "UNK-LC", "UNK-LC-s", "UNK-LC", "UNK-LC"]
    expected = with_lookahead(tree_to_tokens(parse_tree(TREES[0])), classes)
    symbols = task.tokenizers.text("target")
    assert symbols.decode(features["target"].tolist()) == " ".join(expected)
    params, lines = random_params(task), ["the dog sees", "", "home", "( a dog )"]
    found = list(task.predict(params, lines, DECODE))
    assert [words_of(outputs[0].text) if outputs[0].text else "" for outputs in found] == [
        *lines[:3],
        "-LRB- a dog -RRB-",
    ]
    [(score, _)] = task.score(params, lines[:1], [found[0][0].text], batch_size=1)
    assert found[0][0].score == pytest.approx(score, rel=1e-4)
