"""Tokens that are kept: the same as those encoded in one go, whoever encodes them, and once."""

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import time

import numpy as np
import pytest

from transformer_jax.data.batches import token_cache
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.data.batches.windows import token_stream
from transformer_jax.errors import UserError
from transformer_jax.tokenization.specials import OWN

TEXTS = [f"document {i} " * (i % 7) + "Ü\ud800\n" * (i % 2) for i in range(100)]


class Bytes:
    """A tokenizer of bytes, slow where it is told to be, that counts what it encodes."""

    specials = OWN

    def __init__(self, seconds=0.0):
        self.seconds, self.encoded = seconds, 0

    def encode(self, text):
        time.sleep(self.seconds)
        self.encoded += 1
        return [10 + byte for byte in text.encode(errors="surrogatepass")]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Texts of a hundred bytes are worth it, in parts of as many."""
    for name in ("_WORTH_KEEPING", "_PART_BYTES"):
        monkeypatch.setattr(token_cache, name, 100)


@pytest.fixture
def cache(tmp_path):
    return TokenCache(tmp_path / "cache", "a digest", chosen=True)


def examples(texts=TEXTS):
    return [{"text": text} for text in texts]


def assert_same(found, texts=TEXTS, first=OWN.eos):
    expected = token_stream(map(Bytes().encode, texts), first, OWN.eos)
    for name in ("tokens", "starts", "ends"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("first", [OWN.eos, 7])
def test_what_is_kept_is_what_one_go_makes(cache, first):
    tokenizer = Bytes()
    assert_same(cache.stream(examples(), tokenizer, first), first=first)
    assert tokenizer.encoded == len(TEXTS)
    assert_same(cache.stream(examples(), tokenizer, first), first=first)
    assert tokenizer.encoded == len(TEXTS)
    (folder,) = [path for path in cache.folder.iterdir() if path.is_dir()]
    assert {path.name for path in folder.iterdir()} >= {"index.json", "tokens.bin", "sizes.npy"}
    assert not list(folder.glob("*.npz"))


def test_other_text_tokens_or_first_tokens_are_kept_apart(cache, tmp_path):
    other = TokenCache(cache.folder, "another digest", chosen=True)
    tokenizer = Bytes()
    for kept, texts, first in (
        (cache, TEXTS, OWN.eos),
        (cache, TEXTS, 7),
        (other, TEXTS, OWN.eos),
        (cache, [*TEXTS[:-1], "other"], OWN.eos),
        (cache, [TEXTS[0] + TEXTS[1][0], TEXTS[1][1:], *TEXTS[2:]], OWN.eos),
    ):
        before = tokenizer.encoded
        assert_same(kept.stream(examples(texts), tokenizer, first), texts, first)
        assert tokenizer.encoded == before + len(texts)


def test_short_and_empty_text_is_not_kept(cache):
    assert cache.stream(examples(["short"]), Bytes(), 7) is None
    assert cache.stream([], Bytes(), 7) is None
    assert not cache.folder.exists()


def encode(folder, seconds, done):
    for name in ("_WORTH_KEEPING", "_PART_BYTES"):
        setattr(token_cache, name, 100)
    tokenizer = Bytes(seconds)
    TokenCache(folder, "a digest", chosen=True).stream(examples(), tokenizer, OWN.eos)
    done.put(tokenizer.encoded)


def test_a_killed_writer_goes_on_and_several_share_the_work(cache):
    """Two are killed at it; of three others none encodes what is there, or what another does."""
    context = multiprocessing.get_context("spawn")
    done = context.Queue()

    def writer(seconds):
        process = context.Process(target=encode, args=(cache.folder, seconds, done))
        process.start()
        return process

    def parts():
        return list(cache.folder.glob("*/parts/*.npz"))

    for kill in range(2):
        process, before = writer(0.01), len(parts())
        while len(parts()) == before:
            time.sleep(0.005)
        process.kill()
        process.join()
        assert len(parts()) > kill
    kept = sum(len(np.load(path)["sizes"]) for path in parts())
    writers = [writer(0.002) for _ in range(3)]
    counts = [done.get(timeout=120) for _ in writers]
    assert sum(counts) == len(TEXTS) - kept
    tokenizer = Bytes()
    assert_same(cache.stream(examples(), tokenizer, OWN.eos))
    assert tokenizer.encoded == 0


class Waiting(Bytes):
    """Encodes nothing in this process before another one has made a part."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.own = folder, os.getpid()

    def encode(self, text):
        until = time.monotonic() + 60
        while os.getpid() == self.own and not list(self.folder.glob("*/parts/*.npz")):
            assert time.monotonic() < until
            time.sleep(0.01)
        return super().encode(text)


def test_helpers_encode_parts_of_a_long_text(cache, monkeypatch):
    monkeypatch.setattr(token_cache, "_PARTS_OF_A_HELPER", 1)
    tokenizer = Waiting(cache.folder)
    helped = dataclasses.replace(cache, num_workers=2)
    assert_same(helped.stream(examples(), tokenizer, OWN.eos))
    assert 0 < tokenizer.encoded < len(TEXTS)
    assert multiprocessing.active_children() == []


def test_short_text_has_few_helpers(cache, monkeypatch):
    asked = []

    def helped(work, count):
        asked.append(count)
        return contextlib.nullcontext()

    monkeypatch.setattr(token_cache, "helped", helped)
    for num_workers, texts in ((0, TEXTS), (2, TEXTS[1:]), (99, TEXTS[2:]), (99, TEXTS[:10])):
        few = dataclasses.replace(cache, num_workers=num_workers)
        few.stream(examples(texts), Bytes(), OWN.eos)
    assert asked[:2] == [0, 2] and 2 < asked[2] < 99 and asked[3] == 0


@pytest.mark.parametrize("name", ["tokens.bin", "sizes.npy", "index.json"])
def test_what_is_damaged_is_made_again(cache, name, caplog):
    cache.stream(examples(), Bytes(), OWN.eos)
    (damaged,) = cache.folder.glob(f"*/{name}")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    caplog.set_level(logging.WARNING)
    assert_same(cache.stream(examples(), Bytes(), OWN.eos))
    assert "is damaged, and made again" in caplog.text
    assert json.loads((damaged.parent / "index.json").read_text())["format"] == 1


def test_a_damaged_part_is_encoded_again(cache, monkeypatch):
    together = token_cache._CachedStream._put_together
    monkeypatch.setattr(token_cache._CachedStream, "_put_together", lambda kept: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.stream(examples(), Bytes(), OWN.eos)
    monkeypatch.setattr(token_cache._CachedStream, "_put_together", together)
    first, second, *_ = sorted(cache.folder.glob("*/parts/*.npz"))
    second.write_bytes(first.read_bytes()[:-40])
    tokenizer = Bytes()
    assert_same(cache.stream(examples(), tokenizer, OWN.eos))
    assert 0 < tokenizer.encoded < len(TEXTS)


def test_a_folder_that_cannot_be_written_is_told(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
            TokenCache(folder, "a digest", chosen=True).stream(examples(), Bytes(), OWN.eos)
        kept = TokenCache(folder, "a digest", chosen=False)
        assert kept.stream(examples(), Bytes(), OWN.eos) is None
        assert "they are made anew at each start" in caplog.text


def test_text_without_a_token_is_refused(cache):
    class Nothing(Bytes):
        def encode(self, text):
            return []

    for _ in range(2):
        with pytest.raises(UserError, match="the text is empty"):
            cache.stream(examples(), Nothing(), OWN.eos)
