# SPDX-License-Identifier: Apache-2.0
"""Subword regularization: what is drawn, how often, and that it is the same text."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import scipy.stats

from transformer_jax.tokenization import Labels, TokenizerConfig, resegmenter_of
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.tokenization.subword_sampling import (
    BpeDropout,
    Resegmenter,
    UnigramSampling,
    starts_at_spaces,
)
from transformer_jax.tokenization.vocabularies import Tokenizers, train_vocabulary

TEXTS = [
    "The old man sees the small dog, and the smaller dogs see the oldest man.",
    "Der alte Mann sieht den kleinen Hund, weil er müde ist; die Männer sehen die Hunde.",
    "Größe: isn't it 42 % of what we'd see?  don't 's it''s\n\n  def f(x):\treturn x",
    "日本語の日本、本日の日本語。 हिन्दी में हिन्दी 🎉👨‍👩‍👧 ﬁ １２３",
]
KINDS = {
    "bpe": {"vocab_size": 170, "character_coverage": 0.99},
    "bpe_bytes": {"kind": "bpe", "vocab_size": 400, "byte_fallback": True},
    "bpe_identity": {"kind": "bpe", "vocab_size": 170, "normalization": "identity"},
    "unigram": {"vocab_size": 95, "character_coverage": 0.99},
    "unigram_identity": {"kind": "unigram", "vocab_size": 95, "normalization": "identity"},
    "byte_bpe": {"vocab_size": 380},
}
TO_VITERBI = 1e6
"""An alpha with which the likeliest segmentation is certain."""


def trained(kind, **options):
    config = TokenizerConfig(kind, **options)
    return TOKENIZERS[kind].load(train_vocabulary(config, TEXTS * 4, "text"))


@pytest.fixture(scope="module")
def tokenizer_of():
    return {name: trained(**{"kind": name} | options) for name, options in KINDS.items()}.get


def unicode_texts(count):
    """Drawn texts of known and of any other characters, and of words longer than a part."""
    rng, known = random.Random(0), "".join(TEXTS)
    yield from (known, "日" * 150, "dog" * 50)
    for _ in range(count):
        others = (chr(rng.choice([rng.randrange(0x3000), rng.randrange(0xE000, 0x110000)])), " ")
        yield "".join(rng.choice([*others, *rng.choices(known, k=6)]) for _ in range(40))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_without_chance_are_the_librarys_and_all_others_are_of_the_same_text(
    tokenizer_of, kind
):
    tokenizer, rng = tokenizer_of(kind), np.random.default_rng(0)
    never = TO_VITERBI if kind.startswith("unigram") else 0.0
    for text in unicode_texts(60):
        ids = tokenizer.encode(text)
        assert tokenizer.resegmenter(ids, never, rng) == ids
        for rate in (0.1, 0.7, 1.0):
            drawn = tokenizer.resegmenter(ids, rate, rng)
            assert tokenizer.decode(drawn) == tokenizer.decode(ids)
            assert tokenizer.count_unknown(drawn) == tokenizer.count_unknown(ids)


@pytest.mark.parametrize("kind", ["bpe", "bpe_identity", "byte_bpe"])
def test_bpe_that_skips_all_merges_leaves_characters(tokenizer_of, kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(TEXTS[1])
    drawn = tokenizer.resegmenter(ids, 1.0, np.random.default_rng(0))
    assert len(drawn) > len(ids)
    assert "".join(tokenizer.pieces(drawn)) == "".join(tokenizer.pieces(ids))
    assert {len(piece) for piece in tokenizer.pieces(drawn)} == {1}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte_bpe"])
def test_the_rng_decides_alone(tokenizer_of, kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(TEXTS[0])
    first, again, other = (
        tokenizer.resegmenter(ids, 0.3, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    rng = np.random.default_rng(1)
    assert first == tokenizer.resegmenter(ids, 0.3, rng) != tokenizer.resegmenter(ids, 0.3, rng)


def test_part_of_a_character_where_running_text_is_cut(tokenizer_of):
    tokenizer = tokenizer_of("byte_bpe")
    ids = tokenizer.resegmenter(tokenizer.encode(TEXTS[3]), 1.0, np.random.default_rng(0))
    for start, stop in itertools.product(range(1, 4), range(-3, 0)):
        part = ids[start:stop]
        drawn = tokenizer.resegmenter(part, 0.0, np.random.default_rng(0))
        assert "".join(tokenizer.pieces(drawn)) == "".join(tokenizer.pieces(part))
        assert len(drawn) < len(part)


PROBABILITIES = {"a": 0.2, "b": 0.1, "ab": 0.3, "ba": 0.15, "aba": 0.2, "bb": 0.05}
WORD = "ababb"


def segmentations(word):
    """All ways to cut a word into pieces, by hand."""
    if not word:
        yield ()
    for piece in PROBABILITIES:
        if word.startswith(piece):
            yield from ((piece, *others) for others in segmentations(word.removeprefix(piece)))


def p_value(segmenter, word, rate, expected, count=4000):
    """P-value of a chi-squared test of the numbers of draws against expected probabilities."""
    rng, pieces = random.Random(0), list(segmenter.ids)
    drawn = Counter(
        tuple(pieces[i] for i in segmenter.sample(word, rate, rng)) for _ in range(count)
    )
    assert drawn.keys() <= expected.keys()
    found = [drawn[one] for one in expected]
    return scipy.stats.chisquare(found, [count * one for one in expected.values()]).pvalue


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_samples_have_the_probabilities_of_the_paper(alpha):
    """P(x)^alpha over the sum of these (Kudo 2018, section 3.2)."""
    ids = {piece: i for i, piece in enumerate(PROBABILITIES)}
    log_probs = {piece: math.log(p) for piece, p in PROBABILITIES.items()}
    weights = {
        one: math.prod(PROBABILITIES[piece] for piece in one) ** alpha
        for one in segmentations(WORD)
    }
    expected = {one: weight / sum(weights.values()) for one, weight in weights.items()}
    assert len(expected) == 10
    assert p_value(UnigramSampling(ids, log_probs), WORD, alpha, expected) > 0.01


def test_bpe_dropout_has_the_probabilities_of_the_paper():
    """Algorithm 1 of Provilkov et al. 2020: all possible merges are dropped anew at each step."""
    ranks = {("a", "b"): 0, ("ab", "c"): 1, ("b", "c"): 2}
    ids = {piece: i for i, piece in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
    p = 0.3
    expected = {
        ("abc",): (1 - p) ** 2,
        ("ab", "c"): (1 - p) * p,
        ("a", "bc"): p * (1 - p),
        ("a", "b", "c"): p**2,
    }
    assert p_value(BpeDropout(ids, ranks), "abc", p, expected) > 0.01


def test_symbols_that_no_merge_makes_stay():
    ids = {"▁": 3, "a": 4, "b": 5, "ab": 6, "▁ab": 7, "[X]": 8}
    scores = {"▁": -4, "a": -5, "b": -6, "ab": -1, "▁ab": -2, "[X]": 0}
    draw = Resegmenter(BpeDropout.from_scores(ids, scores), starts_at_spaces)
    assert draw([7, 8, 1, 99, 6], 0.0, np.random.default_rng(0)) == [7, 8, 1, 99, 6]
    assert draw([7, 8, 1, 99, 6], 1.0, np.random.default_rng(0)) == [3, 4, 5, 8, 1, 99, 4, 5]


def test_only_bpe_and_unigram_can_and_labels_stay(tokenizer_of):
    assert resegmenter_of(trained("wordpiece", vocab_size=200)) is None
    labels, bpe = Labels(("x",)), tokenizer_of("bpe")
    plain = Tokenizers({"text": bpe, "label": labels})
    assert plain.sampled(np.random.default_rng(0)) is plain
    drawn = Tokenizers(plain.sides, sampling=0.5).sampled(np.random.default_rng(0))
    assert drawn.labels("label") is labels
    text, ids = TEXTS[0], bpe.encode(TEXTS[0])
    sampled = drawn.text("text")
    for found in (sampled.encode(text), sampled.encode_plain(text), *sampled.encode_batch([text])):
        assert found != ids
        assert bpe.decode(found) == text
    words = sampled.encode_words(text.split())
    assert [bpe.decode(word) for word in words] == text.split()
    assert sampled.vocab_size == bpe.vocab_size
