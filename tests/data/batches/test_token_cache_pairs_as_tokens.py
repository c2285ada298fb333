"""Pairs that are kept are those that are encoded whenever they are asked for."""

import numpy as np
import pytest

from tests.data.batches.test_token_cache import Bytes
from transformer_jax.data.batches import token_cache
from transformer_jax.data.batches.pipeline import train_batches
from transformer_jax.data.batches.token_cache import TokenCaching, pairs_as_tokens
from transformer_jax.data.examples import Corpora, LinePairs
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizers

PAIRS = LinePairs([f"source {i} " * (i % 5) for i in range(60)], ["Ü" * i for i in range(60)])
"""Some sides are empty."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Texts of a hundred bytes are worth it, in parts of as many."""
    for name in ("_WORTH_KEEPING", "_PART_BYTES"):
        monkeypatch.setattr(token_cache, name, 100)


@pytest.fixture
def tokenizers():
    one, other = Bytes(), Bytes()
    return Tokenizers({"source": one, "target": other}, {"source": "one", "target": "other"})


def encoded(tokenizers):
    return [tokenizers.text(side).encoded for side in ("source", "target")]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for i in range(len(expected)):
        one, other = found[i], expected[i]
        assert one.keys() == other.keys() == {"source", "target"}
        for side in other:
            assert one[side].dtype == other[side].dtype == np.int32
            np.testing.assert_array_equal(one[side], other[side])


def test_kept_pairs_are_the_encoded_ones(tokenizers, tmp_path):
    plain = pairs_as_tokens(PAIRS, tokenizers, TokenCaching())
    assert encoded(tokenizers) == [0, 0]
    assert plain[1]["target"].tolist() == [10 + byte for byte in "Ü".encode()]
    before = encoded(tokenizers)
    kept = pairs_as_tokens(PAIRS, tokenizers, TokenCaching(str(tmp_path)))
    assert encoded(tokenizers) == [count + len(PAIRS) for count in before]
    once = encoded(tokenizers)
    again = pairs_as_tokens(PAIRS, tokenizers, TokenCaching(str(tmp_path)))
    kept[3], again[-1]
    assert encoded(tokenizers) == once
    assert_same(kept, plain)
    assert_same(again, plain)


def test_few_pairs_are_not_kept(tokenizers, tmp_path):
    few = LinePairs(PAIRS.sources, [""] * len(PAIRS))
    for pairs in (LinePairs(["a"], ["b"]), few, []):
        found = pairs_as_tokens(pairs, tokenizers, TokenCaching(str(tmp_path)))
        assert_same(found, pairs_as_tokens(pairs, tokenizers, TokenCaching()))


def test_corpora_with_weights_keep_them(tokenizers, tmp_path):
    corpora = Corpora((PAIRS, LinePairs(["a"], ["b"])), (2.0, 1.0))
    found = pairs_as_tokens(corpora, tokenizers, TokenCaching(str(tmp_path)))
    assert isinstance(found, Corpora) and found.weights == (2.0, 1.0)
    assert_same(found, pairs_as_tokens(corpora, tokenizers, TokenCaching()))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_kept_pairs_are_those_of_encoded_ones(tokenizers, tmp_path, num_workers):
    def batches(caching):
        pairs = pairs_as_tokens(LinePairs(*2 * [PAIRS.targets[1:]]), tokenizers, caching)
        lengths = {"source": 150, "target": 150}
        made = train_batches(
            pairs, _as_it_is, lengths=lengths, rows=8, seed=0, num_workers=num_workers
        )
        taken = [next(made) for _ in range(3)]
        made.close()
        return taken

    for kept, plain in zip(
        batches(TokenCaching(str(tmp_path))), batches(TokenCaching()), strict=True
    ):
        for name in plain:
            np.testing.assert_array_equal(kept[name], plain[name])


def _as_it_is(features, rng):
    return features


def test_a_folder_that_cannot_be_written_is_told(tokenizers, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep tokens in .*; set data.cache_dir"):
        pairs_as_tokens(PAIRS, tokenizers, TokenCaching(str(tmp_path / "file")))
