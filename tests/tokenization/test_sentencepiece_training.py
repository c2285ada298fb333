# SPDX-License-Identifier: Apache-2.0
"""Training sentencepiece vocabularies: sizes and coverage."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import SentencePieceTokenizer, TokenizerConfig
from transformer_jax.tokenization.vocabularies import train_vocabulary

TEXTS = ["one two three two one", "two two three", "four one five"]
NUM_CHARACTERS = len(set("onetwothreefourfive")) + 1  # and the space
NUM_WORDS = 5


def vocabulary(kind, vocab_size, texts=TEXTS):
    tokenizer = SentencePieceTokenizer(
        train_vocabulary(TokenizerConfig(kind, vocab_size), texts, "joint")
    )
    return tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize(("kind", "size"), [("char", 4 + NUM_CHARACTERS), ("word", 4 + NUM_WORDS)])
def test_size_is_an_upper_bound_for_chars_and_words(kind, size):
    assert len(vocabulary(kind, 1000)) == size
    assert len(vocabulary(kind, 7)) == 7


def test_the_most_frequent_words_are_kept():
    assert set(vocabulary("word", 6)[4:]) == {"▁one", "▁two"}


@pytest.mark.parametrize(("coverage", "size"), [(1.0, 7), (0.99, 6)])
def test_characters_beyond_the_coverage_get_no_token(coverage, size):
    config = TokenizerConfig("char", 10, character_coverage=coverage)
    model = train_vocabulary(config, ["a " * 500 + "z"], "joint")  # "z" is 1 of 1002
    assert SentencePieceTokenizer(model).vocab_size == size


def test_the_maximum_size_of_the_message_can_be_trained():
    with pytest.raises(UserError) as caught:
        vocabulary("bpe", 1000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert len(vocabulary("bpe", most)) == most


def test_long_lines_are_learned():
    assert "▁far" in vocabulary("word", 10, ["near " * 2000 + "far"])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_byte_fallback_leaves_no_character_unknown(kind):
    config = TokenizerConfig(kind, 256 + 4 + NUM_CHARACTERS + 2, byte_fallback=True)
    tokenizer = SentencePieceTokenizer(train_vocabulary(config, TEXTS, "joint"))
    ids = tokenizer.encode("one \u6f22 two")
    assert not tokenizer.count_unknown(ids)
    assert tokenizer.decode(ids) == "one \u6f22 two"
