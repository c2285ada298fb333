# SPDX-License-Identifier: Apache-2.0
"""Training a vocabulary of any kind: deterministic, silent, its size, and an error without text."""

from functools import partial

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import TOKENIZERS, SentencePieceTokenizer, TokenizerConfig
from transformer_jax.tokenization.vocabularies import sample_texts, train_vocabulary

TEXTS = ["one two three two one", "two two three", "four one five"]
NUM_CHARACTERS = len(set("onetwothreefourfive")) + 1  # and the space
NUM_WORDS = 5
BOOK = "near\n" * 20_000 + "far away far away"
TRAINED = [name for name, kind in TOKENIZERS.items() if kind.train]
SIZE = {"byte_bpe": 266, "wordpiece": 40}


def vocabulary(kind, texts=TEXTS, size=None):
    model = train_vocabulary(TokenizerConfig(kind, size or SIZE.get(kind, 18)), texts, "joint")
    tokenizer = TOKENIZERS[kind].load(model)
    return tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", TRAINED)
def test_same_texts_give_the_same_vocabulary_and_nothing_is_printed(kind, capfd):
    assert vocabulary(kind) == vocabulary(kind)
    assert capfd.readouterr() == ("", "")


def test_texts_that_do_not_fit_the_config_are_refused(assert_refused):
    no_text = "joint tokenizer has no text"
    cases = [(kind, texts, None, no_text) for kind in TRAINED for texts in ([], ["", ""])]
    cases += [(kind, [" ", "\n"], None, no_text) for kind in ("bpe", "wordpiece")]
    cases += [("wordpiece", ["\x01"], 30, no_text), ("bpe", ["\u200b"], 20, "joint tokenizer")]
    for kind in ("bpe", "unigram"):
        cases.append((kind, TEXTS, 1000, "tokenizer.vocab_size 1000 is too large: the joint text"))
        cases.append((kind, TEXTS, 6, "tokenizer.vocab_size 6 is too small: the characters of the"))
    small = "tokenizer.vocab_size 10 is too small: the characters of the joint text alone need 12"
    cases.append(("wordpiece", ["an ant and"], 10, small))
    assert_refused(
        {
            f"{kind} {texts} {size}": (partial(vocabulary, kind, texts, size), words)
            for kind, texts, size, words in cases
        }
    )


@pytest.mark.parametrize(("kind", "size"), [("char", 4 + NUM_CHARACTERS), ("word", 4 + NUM_WORDS)])
def test_size_is_an_upper_bound_for_chars_and_words(kind, size):
    assert len(vocabulary(kind, size=1000)) == size
    assert len(vocabulary(kind, size=7)) == 7


def test_the_most_frequent_words_are_kept():
    assert set(vocabulary("word", size=6)[4:]) == {"▁one", "▁two"}


@pytest.mark.parametrize(("coverage", "size"), [(1.0, 7), (0.99, 6)])
def test_characters_beyond_the_coverage_get_no_token(coverage, size):
    config = TokenizerConfig("char", 10, character_coverage=coverage)
    model = train_vocabulary(config, ["a " * 500 + "z"], "joint")  # "z" is 1 of 1002
    assert SentencePieceTokenizer(model).vocab_size == size


def test_the_maximum_size_of_the_message_can_be_trained():
    with pytest.raises(UserError) as caught:
        vocabulary("bpe", size=1000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert len(vocabulary("bpe", size=most)) == most


@pytest.mark.parametrize(
    ("kind", "text", "size", "piece"),
    [("word", "near " * 2000 + "far", 10, "▁far")]
    + [("wordpiece", BOOK, 40, "away"), ("byte_bpe", BOOK, 290, "Ġaway")],
    ids=["word", "wordpiece", "byte_bpe"],
)
def test_long_texts_are_learned(kind, text, size, piece):
    assert piece in vocabulary(kind, [text], size)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_byte_fallback_leaves_no_character_unknown(kind):
    config = TokenizerConfig(kind, 256 + 4 + NUM_CHARACTERS + 2, byte_fallback=True)
    tokenizer = SentencePieceTokenizer(train_vocabulary(config, TEXTS, "joint"))
    ids = tokenizer.encode("one \u6f22 two")
    assert not tokenizer.count_unknown(ids)
    assert tokenizer.decode(ids) == "one \u6f22 two"


@pytest.mark.parametrize("kind", TRAINED)
def test_training_accepts_lone_surrogates(kind):
    assert vocabulary(kind, [*TEXTS, "two \ud83d two"])


def test_an_error_while_reading_texts_is_passed_on():
    def texts():
        yield "one"
        raise UserError("train.de, line 2: not UTF-8")

    with pytest.raises(UserError, match="line 2"):
        vocabulary("bpe", texts())


def test_small_corpora_are_used_whole_and_large_ones_sampled_evenly():
    assert sample_texts("abc", 3) == ["a", "b", "c"]
    sample = [int(text) for text in sample_texts(map(str, range(10_000)), 500)]
    assert len(set(sample)) == 500
    assert 4500 < sum(sample) / 500 < 5500  # standard error 129


def test_sampling_is_the_same_in_every_process():
    assert sample_texts("abcdefghij", 3) == ["f", "b", "g"]
