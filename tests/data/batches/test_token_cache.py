# SPDX-License-Identifier: Apache-2.0
"""The token cache: the same tokens as without it, encoded once, by any number of processes."""

import functools
import gzip
import json
import multiprocessing
import os
import pickle
import sys
import time
import types

import numpy as np
import pytest

from transformer_jax.data.batches import token_cache
from transformer_jax.data.batches.token_cache import (
    TokenCache,
    text_digest,
    tokenize_pairs,
)
from transformer_jax.data.batches.windows import store_token_stream
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpora, LinePairs, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizers
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS
from transformer_jax.tokenization.vocabularies import ExtendedTokenizer

EOS = DEFAULT_SPECIALS.eos
SIDES = ("source", "target")
TEXTS = [f"document {i} " * (i % 7) + "Ü\ud800\n" * (i % 2) for i in range(100)]


class Bytes:
    """Tokenizer of bytes, optionally slow, that counts the texts it encodes."""

    specials = DEFAULT_SPECIALS

    def __init__(self, seconds=0.0):
        self.seconds, self.encoded = seconds, 0

    def encode(self, text):
        time.sleep(self.seconds)
        self.encoded += 1
        return [10 + byte for byte in text.encode(errors="surrogatepass")]

    def pieces(self, ids):
        return [f"<{i}>" for i in ids]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Caches texts of 100 bytes or more, in parts of 100 bytes."""
    for name in ("_MIN_BYTES", "_PART_BYTES"):
        monkeypatch.setattr(token_cache, name, 100)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def read_or_encode(folder, tokenizer, texts=TEXTS, first=EOS, digest="a digest", num_workers=0):
    examples = [{"text": text} for text in texts]
    return TokenCache(str(folder), num_workers).read_or_encode(examples, tokenizer, digest, first)


def assert_cached(folder, tokenizer, texts=TEXTS, first=EOS, **more):
    """Reads or encodes a stream, which equals that of a file without a cache."""
    stream = read_or_encode(folder, tokenizer, texts, first, **more)
    expected = store_token_stream(map(Bytes().encode, texts), first, EOS)
    for name in ("tokens", "starts", "ends"):
        np.testing.assert_array_equal(getattr(stream, name), getattr(expected, name))


@pytest.mark.parametrize("first", [EOS, 7])
def test_cached_tokens_equal_newly_encoded_ones(folder, first):
    tokenizer = Bytes()
    for _ in range(2):
        assert_cached(folder, tokenizer, first=first)
        assert tokenizer.encoded == len(TEXTS)
    assert {path.name for path in folder.glob("*/*")} == {"tokens", "lock"}


def test_other_texts_tokenizers_or_first_tokens_have_other_keys(folder):
    tokenizer = Bytes()
    for digest, texts, first in (
        ("a digest", TEXTS, EOS),
        ("a digest", TEXTS, 7),
        ("another digest", TEXTS, EOS),
        ("a digest", [*TEXTS[:-1], "other"], EOS),
        ("a digest", [TEXTS[0] + TEXTS[1][0], TEXTS[1][1:], *TEXTS[2:]], EOS),
    ):
        before = tokenizer.encoded
        assert_cached(folder, tokenizer, texts, first, digest=digest)
        assert tokenizer.encoded == before + len(texts)


def test_what_is_not_cached(folder):
    assert read_or_encode(folder, Bytes(), ["short"]) is None
    assert read_or_encode(folder, Bytes(), []) is None
    assert read_or_encode(folder, Bytes(), digest=None) is None
    assert TokenCache().read_or_encode([{"text": "a" * 999}], Bytes(), "a digest", EOS) is None
    assert not folder.exists()


def encode(folder, seconds, done):
    for name in ("_MIN_BYTES", "_PART_BYTES"):
        setattr(token_cache, name, 100)
    tokenizer = Bytes(seconds)
    read_or_encode(folder, tokenizer)
    done.put(tokenizer.encoded)


def num_encoded_parts(folder):
    return len([path for path in folder.glob("*/parts/*") if path.name.isdigit()])


def test_one_of_several_processes_encodes_what_a_killed_one_has_not(folder):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformer_jax.data.batches.token_cache"])  # imported once
    done = context.Queue()

    def start(seconds):
        process = context.Process(target=encode, args=(folder, seconds, done))
        process.start()
        return process

    process = start(0.01)
    while not num_encoded_parts(folder):
        time.sleep(0.005)
    process.kill()
    process.join()
    assert num_encoded_parts(folder)
    writers = [start(0.002) for _ in range(2)]
    counts = sorted(done.get(timeout=600) for _ in writers)
    assert counts[0] == 0 < counts[1] < len(TEXTS)
    tokenizer = Bytes()
    assert_cached(folder, tokenizer)
    assert tokenizer.encoded == 0


class Waiting(Bytes):
    """Tokenizer that waits in this process until another one has encoded a part."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.own = folder, os.getpid()

    def encode(self, text):
        until = time.monotonic() + 600
        while os.getpid() == self.own and not num_encoded_parts(self.folder):
            assert time.monotonic() < until
            time.sleep(0.01)
        return super().encode(text)


def test_helpers_encode_parts_of_a_long_text(folder, monkeypatch):
    monkeypatch.setattr(token_cache, "_PARTS_PER_HELPER", 1)
    tokenizer = Waiting(folder)
    assert_cached(folder, tokenizer, num_workers=1)
    assert 0 < tokenizer.encoded < len(TEXTS)
    assert multiprocessing.active_children() == []


def test_a_part_is_read_where_the_parts_are_joined_alone(folder, monkeypatch):
    """Not by each process that encodes others: all would read all parts."""
    made = []
    part = token_cache._Encoding._part

    def record(encoding, number):
        made.append(number)
        return part(encoding, number)

    monkeypatch.setattr(token_cache._Encoding, "_part", record)
    with monkeypatch.context() as patched:
        patched.setattr(token_cache._Encoding, "_join", lambda encoding, file: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                read_or_encode(folder, Bytes())
    assert sorted(made) == list(range(len(made))) and len(made) > 1


def test_a_damaged_stream_or_part_is_encoded_again(folder, monkeypatch):
    """Damage of all kinds: `tests/runtime/test_files.py`."""
    with monkeypatch.context() as patched:  # as if it were killed before it joins them
        patched.setattr(token_cache._Encoding, "_join", lambda encoding, file: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            read_or_encode(folder, Bytes())
    for name in ("parts/00001", "tokens"):
        (damaged,) = folder.glob(f"*/{name}")
        damaged.write_bytes(damaged.read_bytes()[:-40])
        tokenizer = Bytes()
        assert_cached(folder, tokenizer)
        assert 0 < tokenizer.encoded < len(TEXTS) or name == "tokens"
    assert_cached(folder, tokenizer)
    assert tokenizer.encoded == len(TEXTS)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, tokenizers, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
            read_or_encode(folder, Bytes())
    with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
        tokenize_pairs(PAIRS, tokenizers, TokenCache(str(tmp_path / "file")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert read_or_encode("auto", Bytes()) is None
    assert "text is tokenized at each start" in caplog.text


PAIRS = LinePairs([f"source {i} " * (i % 5) for i in range(60)], ["Ü" * i for i in range(60)])
"""Pairs, some with an empty side."""


@pytest.fixture
def tokenizers():
    return Tokenizers({"source": Bytes(), "target": Bytes()}, {"source": "one", "target": "other"})


def num_encoded(tokenizers):
    return [tokenizers.text(side).encoded for side in SIDES]


def assert_same_pairs(found, expected):
    assert len(found) == len(expected)
    for i in range(len(expected)):
        one, other = found[i], expected[i]
        assert one.keys() == other.keys() == {"source", "target"}
        for side in other:
            assert one[side].dtype == other[side].dtype == np.int32
            np.testing.assert_array_equal(one[side], other[side])


def test_cached_pairs_equal_newly_encoded_ones(tokenizers, tmp_path):
    plain = tokenize_pairs(PAIRS, tokenizers, TokenCache())
    assert num_encoded(tokenizers) == [0, 0]
    assert plain[1]["target"].tolist() == [10 + byte for byte in "Ü".encode()]
    before = num_encoded(tokenizers)
    kept = tokenize_pairs(PAIRS, tokenizers, TokenCache(str(tmp_path)))
    assert num_encoded(tokenizers) == [count + len(PAIRS) for count in before]
    once = num_encoded(tokenizers)
    again = tokenize_pairs(PAIRS, tokenizers, TokenCache(str(tmp_path)))
    kept[3], again[-1]
    assert num_encoded(tokenizers) == once
    assert_same_pairs(kept, plain)
    assert_same_pairs(again, plain)


def test_pairs_without_a_cache_are_encoded_once_while_there_is_room(tokenizers):
    expected = {
        side: [tokenizers.text(side).encode(pair[side]) for pair in PAIRS] for side in SIDES
    }
    before = num_encoded(tokenizers)
    indices = np.random.default_rng(0).permutation(len(PAIRS))
    pairs, without_room = (tokenize_pairs(PAIRS, tokenizers, TokenCache()) for _ in range(2))
    for documents in without_room.streams.values():
        documents.room = 500
    for copy in (pairs, pickle.loads(pickle.dumps(pairs)), without_room):
        for part in (*np.array_split(indices, 9), indices):
            for side, slices in copy.slices.items():
                tokens = slices.tokens(part).tolist()
                assert tokens == sum([expected[side][i] for i in part], [])
        if copy is pairs:
            assert num_encoded(tokenizers) == [count + len(PAIRS) for count in before]
    assert num_encoded(tokenizers) > [count + 2 * len(PAIRS) for count in before]  # no room
    assert_same_pairs(copy, pairs)


def test_tokenized_corpora_keep_their_weights(tokenizers, tmp_path):
    corpora = Corpora((PAIRS, LinePairs(["a"], ["b"])), (2.0, 1.0))
    found = tokenize_pairs(corpora, tokenizers, TokenCache(str(tmp_path)))
    assert isinstance(found, Corpora) and found.weights == (2.0, 1.0)
    assert_same_pairs(found, tokenize_pairs(corpora, tokenizers, TokenCache()))


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


def test_the_key_covers_the_code_that_makes_tokens():
    """Renamed folders would leave it out, and stale tokens would stay."""
    assert all(any(token_cache._PACKAGE.glob(pattern)) for pattern in token_cache._SOURCES)


def test_the_code_of_a_users_tokenizer_is_covered_or_nothing_is_cached(tmp_path, monkeypatch):
    module = types.ModuleType("own_tokenizer")
    module.__file__ = str(tmp_path / "own.py")
    monkeypatch.setitem(sys.modules, "own_tokenizer", module)
    own = type("Own", (Bytes,), {"__module__": "own_tokenizer", "vocab_size": 266})()
    keys = set()
    for code in ("first", "second"):
        (tmp_path / "own.py").write_text(code)
        for tokenizer in (own, ExtendedTokenizer(own, masks=False, num_extra=1)):
            read_or_encode(tmp_path / "cache", tokenizer)
            keys |= {path.name for path in (tmp_path / "cache").iterdir()}
    assert len(keys) == 2
    del module.__file__  # as in a notebook
    assert read_or_encode(tmp_path / "cache", own) is None


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
