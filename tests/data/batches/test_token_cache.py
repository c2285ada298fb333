# SPDX-License-Identifier: Apache-2.0
"""The token cache: the same tokens as without it, encoded once, by any number of processes."""

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import shutil
import time

import numpy as np
import pytest

from tests.conftest import FILE_DAMAGE
from transformer_jax.data.batches import token_cache, workers
from transformer_jax.data.batches.pipeline import train_batches
from transformer_jax.data.batches.token_cache import TokenCache, TokenCacheOptions, tokenize_pairs
from transformer_jax.data.batches.windows import store_token_stream
from transformer_jax.data.examples import Corpora, LinePairs
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizers
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS

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


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Caches texts of 100 bytes or more, in parts of 100 bytes."""
    for name in ("_MIN_BYTES", "_PART_BYTES"):
        monkeypatch.setattr(token_cache, name, 100)


@pytest.fixture
def few_parts(monkeypatch):
    monkeypatch.setattr(token_cache, "_PART_BYTES", 1000)


@pytest.fixture
def cache(tmp_path):
    return TokenCache(tmp_path / "cache", "a digest", is_required=True)


def examples(texts=TEXTS):
    return [{"text": text} for text in texts]


def assert_same(found, texts=TEXTS, first=DEFAULT_SPECIALS.eos):
    expected = store_token_stream(map(Bytes().encode, texts), first, DEFAULT_SPECIALS.eos)
    for name in ("tokens", "starts", "ends"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("first", [DEFAULT_SPECIALS.eos, 7])
def test_cached_tokens_equal_newly_encoded_ones(cache, first):
    tokenizer = Bytes()
    assert_same(cache.read_or_encode(examples(), tokenizer, first), first=first)
    assert tokenizer.encoded == len(TEXTS)
    assert_same(cache.read_or_encode(examples(), tokenizer, first), first=first)
    assert tokenizer.encoded == len(TEXTS)
    (folder,) = [path for path in cache.folder.iterdir() if path.is_dir()]
    assert {path.name for path in folder.iterdir()} >= {"index.json", "tokens.bin", "sizes.npy"}
    assert not list(folder.glob("*.npz"))


def test_other_texts_tokenizers_or_first_tokens_have_other_keys(cache, tmp_path):
    other = TokenCache(cache.folder, "another digest", is_required=True)
    tokenizer = Bytes()
    for kept, texts, first in (
        (cache, TEXTS, DEFAULT_SPECIALS.eos),
        (cache, TEXTS, 7),
        (other, TEXTS, DEFAULT_SPECIALS.eos),
        (cache, [*TEXTS[:-1], "other"], DEFAULT_SPECIALS.eos),
        (cache, [TEXTS[0] + TEXTS[1][0], TEXTS[1][1:], *TEXTS[2:]], DEFAULT_SPECIALS.eos),
    ):
        before = tokenizer.encoded
        assert_same(kept.read_or_encode(examples(texts), tokenizer, first), texts, first)
        assert tokenizer.encoded == before + len(texts)


def test_short_and_empty_text_is_not_cached(cache):
    assert cache.read_or_encode(examples(["short"]), Bytes(), 7) is None
    assert cache.read_or_encode([], Bytes(), 7) is None
    assert not cache.folder.exists()


def encode(folder, seconds, done):
    for name in ("_MIN_BYTES", "_PART_BYTES"):
        setattr(token_cache, name, 100)
    tokenizer = Bytes(seconds)
    TokenCache(folder, "a digest", is_required=True).read_or_encode(
        examples(), tokenizer, DEFAULT_SPECIALS.eos
    )
    done.put(tokenizer.encoded)


def test_processes_share_the_work_and_resume_that_of_killed_ones(cache):
    """A process is killed; two others then encode each remaining text once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformer_jax.data.batches.token_cache"])  # imported once
    done = context.Queue()

    def writer(seconds):
        process = context.Process(target=encode, args=(cache.folder, seconds, done))
        process.start()
        return process

    def parts():
        return list(cache.folder.glob("*/parts/*.npz"))

    process = writer(0.01)
    while not parts():
        time.sleep(0.005)
    process.kill()
    process.join()
    kept = sum(len(np.load(path)["sizes"]) for path in parts())
    assert 0 < kept < len(TEXTS)
    writers = [writer(0.002) for _ in range(2)]
    counts = [done.get(timeout=600) for _ in writers]
    assert sum(counts) == len(TEXTS) - kept
    tokenizer = Bytes()
    assert_same(cache.read_or_encode(examples(), tokenizer, DEFAULT_SPECIALS.eos))
    assert tokenizer.encoded == 0


class Waiting(Bytes):
    """Tokenizer that waits in this process until another one has encoded a part."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.own = folder, os.getpid()

    def encode(self, text):
        until = time.monotonic() + 600
        while os.getpid() == self.own and not list(self.folder.glob("*/parts/*.npz")):
            assert time.monotonic() < until
            time.sleep(0.01)
        return super().encode(text)


def test_helpers_encode_parts_of_a_long_text(cache, monkeypatch):
    monkeypatch.setattr(token_cache, "_PARTS_PER_HELPER", 1)
    tokenizer = Waiting(cache.folder)
    helped = dataclasses.replace(cache, num_workers=1)
    assert_same(helped.read_or_encode(examples(), tokenizer, DEFAULT_SPECIALS.eos))
    assert 0 < tokenizer.encoded < len(TEXTS)
    assert multiprocessing.active_children() == []


def test_short_text_has_few_helpers(cache, monkeypatch):
    counts = []

    def helper_processes(work, count):
        counts.append(count)
        return contextlib.nullcontext()

    monkeypatch.setattr(workers, "helper_processes", helper_processes)
    for num_workers, texts in ((0, TEXTS), (2, TEXTS[1:]), (99, TEXTS[2:]), (99, TEXTS[:10])):
        few = dataclasses.replace(cache, num_workers=num_workers)
        few.read_or_encode(examples(texts), Bytes(), DEFAULT_SPECIALS.eos)
    assert counts[:2] == [0, 2] and 2 < counts[2] < 99 and counts[3] == 0


@pytest.mark.usefixtures("few_parts")
@pytest.mark.parametrize("damage", FILE_DAMAGE.values(), ids=FILE_DAMAGE)
@pytest.mark.parametrize("name", ["tokens.bin", "sizes.npy", "index.json", "parts/00001.npz"])
def test_whatever_is_in_place_of_a_file_it_is_encoded_again(cache, name, damage, monkeypatch):
    with monkeypatch.context() as patches:
        if name.startswith("parts"):  # as if it were killed before it joins them
            patches.setattr(token_cache._CachedStream, "_join_parts", lambda stream: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos)
    (damaged,) = cache.folder.glob(f"*/{name}")
    damage(damaged)
    assert_same(cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos))
    tokenizer = Bytes()
    assert_same(cache.read_or_encode(examples(), tokenizer, DEFAULT_SPECIALS.eos))
    assert tokenizer.encoded == 0


@pytest.mark.usefixtures("few_parts")
@pytest.mark.parametrize("name", ["", ".lock", "/parts"])
def test_links_in_the_cache_are_removed_and_not_followed(cache, tmp_path, name):
    cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos)
    (folder,) = [path for path in cache.folder.iterdir() if path.is_dir()]
    shutil.rmtree(folder)
    precious = tmp_path / "precious"
    if name == ".lock":
        precious.write_text("mine")
        folder.with_suffix(".lock").unlink()
    else:
        precious.mkdir()
        (precious / "index.json").write_text("mine")
    if name == "/parts":
        folder.mkdir()
    link = folder.parent / f"{folder.name}{name}"
    link.symlink_to(precious)
    assert_same(cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos))
    assert not link.is_symlink()
    kept = precious if name == ".lock" else precious / "index.json"
    assert kept.read_text() == "mine"
    assert precious.is_file() or len(list(precious.iterdir())) == 1


@pytest.mark.usefixtures("few_parts")
def test_a_umask_that_lets_everyone_write_does_not_hold_for_the_cache(cache):
    before = os.umask(0)
    try:
        for _ in range(2):
            assert_same(cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos))
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["tokens.bin", "sizes.npy", "index.json"])
def test_a_damaged_stream_is_encoded_again(cache, name, caplog):
    cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos)
    (damaged,) = cache.folder.glob(f"*/{name}")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    caplog.set_level(logging.WARNING)
    assert_same(cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos))
    assert "is damaged, and made again" in caplog.text
    assert json.loads((damaged.parent / "index.json").read_text())["format"] == 1


def test_a_damaged_part_is_encoded_again(cache, monkeypatch):
    join = token_cache._CachedStream._join_parts
    monkeypatch.setattr(token_cache._CachedStream, "_join_parts", lambda stream: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos)
    monkeypatch.setattr(token_cache._CachedStream, "_join_parts", join)
    first, second, *_ = sorted(cache.folder.glob("*/parts/*.npz"))
    second.write_bytes(first.read_bytes()[:-40])
    tokenizer = Bytes()
    assert_same(cache.read_or_encode(examples(), tokenizer, DEFAULT_SPECIALS.eos))
    assert 0 < tokenizer.encoded < len(TEXTS)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
            TokenCache(folder, "a digest", is_required=True).read_or_encode(
                examples(), Bytes(), DEFAULT_SPECIALS.eos
            )
        kept = TokenCache(folder, "a digest", is_required=False)
        assert kept.read_or_encode(examples(), Bytes(), DEFAULT_SPECIALS.eos) is None
        assert "text is tokenized at each start" in caplog.text


def test_text_without_a_token_is_rejected(cache):
    class Nothing(Bytes):
        def encode(self, text):
            return []

    for _ in range(2):
        with pytest.raises(UserError, match="the text is empty"):
            cache.read_or_encode(examples(), Nothing(), DEFAULT_SPECIALS.eos)


PAIRS = LinePairs([f"source {i} " * (i % 5) for i in range(60)], ["Ü" * i for i in range(60)])
"""Pairs, some with an empty side."""


@pytest.fixture
def tokenizers():
    one, other = Bytes(), Bytes()
    return Tokenizers({"source": one, "target": other}, {"source": "one", "target": "other"})


def num_encoded(tokenizers):
    return [tokenizers.text(side).encoded for side in ("source", "target")]


def assert_same_pairs(found, expected):
    assert len(found) == len(expected)
    for i in range(len(expected)):
        one, other = found[i], expected[i]
        assert one.keys() == other.keys() == {"source", "target"}
        for side in other:
            assert one[side].dtype == other[side].dtype == np.int32
            np.testing.assert_array_equal(one[side], other[side])


def test_cached_pairs_equal_newly_encoded_ones(tokenizers, tmp_path):
    plain = tokenize_pairs(PAIRS, tokenizers, TokenCacheOptions())
    assert num_encoded(tokenizers) == [0, 0]
    assert plain[1]["target"].tolist() == [10 + byte for byte in "Ü".encode()]
    before = num_encoded(tokenizers)
    kept = tokenize_pairs(PAIRS, tokenizers, TokenCacheOptions(str(tmp_path)))
    assert num_encoded(tokenizers) == [count + len(PAIRS) for count in before]
    once = num_encoded(tokenizers)
    again = tokenize_pairs(PAIRS, tokenizers, TokenCacheOptions(str(tmp_path)))
    kept[3], again[-1]
    assert num_encoded(tokenizers) == once
    assert_same_pairs(kept, plain)
    assert_same_pairs(again, plain)


def test_few_pairs_are_not_cached(tokenizers, tmp_path):
    few = LinePairs(PAIRS.sources, [""] * len(PAIRS))
    for pairs in (LinePairs(["a"], ["b"]), few, []):
        found = tokenize_pairs(pairs, tokenizers, TokenCacheOptions(str(tmp_path)))
        assert_same_pairs(found, tokenize_pairs(pairs, tokenizers, TokenCacheOptions()))


def test_tokenized_corpora_keep_their_weights(tokenizers, tmp_path):
    corpora = Corpora((PAIRS, LinePairs(["a"], ["b"])), (2.0, 1.0))
    found = tokenize_pairs(corpora, tokenizers, TokenCacheOptions(str(tmp_path)))
    assert isinstance(found, Corpora) and found.weights == (2.0, 1.0)
    assert_same_pairs(found, tokenize_pairs(corpora, tokenizers, TokenCacheOptions()))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_cached_pairs_equal_those_of_encoded_ones(tokenizers, tmp_path, num_workers):
    def batches(caching, num_workers=0):
        pairs = tokenize_pairs(LinePairs(*2 * [PAIRS.targets[1:]]), tokenizers, caching)
        lengths = {"source": 150, "target": 150}
        made = train_batches(
            pairs, _unchanged, lengths=lengths, rows=8, seed=0, num_workers=num_workers
        )
        taken = [next(made) for _ in range(3)]
        made.close()
        return taken

    for kept, plain in zip(
        batches(TokenCacheOptions(str(tmp_path)), num_workers),
        batches(TokenCacheOptions()),
        strict=True,
    ):
        for name in plain:
            np.testing.assert_array_equal(kept[name], plain[name])


def _unchanged(features, rng):
    return features


def test_pairs_need_a_writable_folder(tokenizers, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
        tokenize_pairs(PAIRS, tokenizers, TokenCacheOptions(str(tmp_path / "file")))
