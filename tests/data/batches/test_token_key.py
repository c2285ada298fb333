# SPDX-License-Identifier: Apache-2.0
"""Digests of text: different for different text, and computed without making examples."""

import functools
import gzip
import json

import numpy as np
import pytest

from transformer_jax.data.batches import token_key
from transformer_jax.data.batches.token_key import text_digest
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.sources import open_split


@pytest.fixture
def opened(tmp_path):
    """`opened(kind, *contents)`: corpus of files with these lines."""

    def make(kind, *contents, suffix=".txt"):
        paths = []
        for lines in contents:
            paths.append(tmp_path / f"{len(list(tmp_path.iterdir()))}{suffix}")
            if suffix == ".jsonl":
                lines = [json.dumps({"text": line}) for line in lines]
            content = "".join(f"{line}\n" for line in lines).encode()
            paths[-1].write_bytes(gzip.compress(content) if suffix == ".gz" else content)
        names = ",".join(map(str, paths))
        if kind == "pairs":
            config = DataConfig(name="parallel_text", train_source=names, train_target=names)
            return Parsed(open_split(config, "train"), _source)
        return open_split(DataConfig(name="text", train_text=names, documents=kind), "train")

    return make


def _source(pair):
    return {"text": pair["source"]}


_source.__module__ = "transformer_jax.data.of_a_test"

KINDS = ["file", "line", "paragraph", "pairs"]


@pytest.mark.parametrize("kind", KINDS)
def test_different_texts_have_different_digests(opened, kind):
    lines = ["one", "", "two", "three"]
    variants = [
        [lines],
        [["One", "", "two", "three"]],
        [["one", "", "two"]],
        [["one", "two", "", "three"]],
        [["on", "e", "two", "three"]],
        [lines, lines],
        [["one", ""], ["two", "three"]],
    ]
    found = [text_digest(opened(kind, *variant)) for variant in variants]
    assert len(set(found)) == len(variants)
    assert text_digest(opened(kind, lines)) == found[0]
    assert text_digest(opened(kind, lines, suffix=".gz")) == found[0]


@pytest.mark.parametrize(
    ("kind", "suffix"), [*((kind, ".txt") for kind in KINDS), ("line", ".jsonl")]
)
def test_no_example_of_a_file_is_made(opened, kind, suffix, monkeypatch):
    documents = opened(kind, ["one", "", "two"] if suffix == ".txt" else ["one"], suffix=suffix)
    monkeypatch.setattr(token_key, "_digest_of_examples", lambda documents: pytest.fail("made one"))
    text_digest(documents)
    text_digest(Selection(documents, np.arange(1)))


def test_selections_and_concatenations_have_different_digests(opened):
    one, other = opened("line", ["a", "b"]), opened("line", ["c"])
    corpora = [
        one,
        *(Selection(one, np.array(indices)) for indices in ([0, 1], [1, 0], [0], [1])),
        *(Corpora(parts) for parts in ((one, other), (other, one), (one,), (one, one))),
    ]
    assert len(set(map(text_digest, corpora))) == len(corpora)


def _upper(line):
    return {"text": line.upper()}


def _lower(line):
    return {"text": line.lower()}


def _cut(size, line):
    return {"text": line[:size]}


@pytest.mark.parametrize("module", ["transformer_jax.data.of_a_test", __name__])
def test_examples_made_by_different_functions_have_different_digests(tmp_path, monkeypatch, module):
    """A function of the package is identified by its name, any other one by its results."""
    for function in (_upper, _lower, _cut):
        monkeypatch.setattr(function, "__module__", module)
    (tmp_path / "text").write_text("Text\n")
    made = [_upper, _lower, *(functools.partial(_cut, size) for size in (1, 2))]
    corpora = [Parsed(TextLines(str(tmp_path / "text")), one) for one in made]
    assert len(set(map(text_digest, corpora))) == len(corpora)


def test_functions_outside_of_the_package_are_identified_by_their_results(tmp_path):
    (tmp_path / "text").write_text("Text\n")
    lines = TextLines(str(tmp_path / "text"))
    same = [Parsed(lines, _upper), Parsed(lines, lambda line: {"text": "TEXT"}), [{"text": "TEXT"}]]
    assert len(set(map(text_digest, same))) == 1
    assert text_digest([{"text": "T"}, {"text": "EXT"}]) != text_digest(same[2])
    assert text_digest([{"text": "\ud800"}]) != text_digest([{"text": ""}])
