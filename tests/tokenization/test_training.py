"""Training repeats itself, stays quiet, and says in one line why a vocabulary cannot be."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import KINDS, Tokenizer, TokenizerConfig
from transformer_jax.tokenization.training import sample_texts, train_model

TEXTS = ["one two three two one", "two two three", "four one five"]
NUM_CHARACTERS = len(set("onetwothreefourfive")) + 1  # and the space
NUM_WORDS = 5


def vocabulary(kind, vocab_size, texts=TEXTS):
    tokenizer = Tokenizer(train_model(TokenizerConfig(kind, vocab_size), texts, "joint"))
    return tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", KINDS)
def test_same_texts_give_the_same_vocabulary(kind):
    assert vocabulary(kind, 18) == vocabulary(kind, 18)


@pytest.mark.parametrize("kind", KINDS)
def test_training_prints_nothing(kind, capfd):
    vocabulary(kind, 18)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("kind", "size"), [("char", 4 + NUM_CHARACTERS), ("word", 4 + NUM_WORDS)])
def test_size_is_an_upper_bound_for_chars_and_words(kind, size):
    assert len(vocabulary(kind, 1000)) == size
    assert len(vocabulary(kind, 7)) == 7


def test_the_most_frequent_words_are_kept():
    assert set(vocabulary("word", 6)[4:]) == {"▁one", "▁two"}


@pytest.mark.parametrize(("coverage", "size"), [(1.0, 7), (0.99, 6)])
def test_characters_beyond_the_coverage_get_no_token(coverage, size):
    config = TokenizerConfig("char", 10, character_coverage=coverage)
    model = train_model(config, ["a " * 500 + "z"], "joint")  # "z" is 1 of 1002
    assert Tokenizer(model).vocab_size == size


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabulary_larger_than_the_text_allows(kind):
    with pytest.raises(UserError, match=r"^tokenizer.vocab_size 1000 is too large.* at most \d+"):
        vocabulary(kind, 1000)


def test_the_size_named_as_the_most_is_possible():
    with pytest.raises(UserError) as caught:
        vocabulary("bpe", 1000)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert len(vocabulary("bpe", most)) == most


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabulary_smaller_than_the_alphabet(kind):
    with pytest.raises(UserError, match=rf"^tokenizer.vocab_size 6 .* need {4 + NUM_CHARACTERS};"):
        vocabulary(kind, 6)


@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_nothing_to_learn_from(texts):
    with pytest.raises(UserError, match="joint tokenizer has no text"):
        vocabulary("bpe", 20, texts)


def test_text_without_a_visible_character_is_one_line(capfd):
    with pytest.raises(UserError) as caught:
        vocabulary("bpe", 20, ["\u200b"])
    assert "\n" not in str(caught.value)


def test_long_lines_are_not_left_out():
    assert "▁far" in vocabulary("word", 10, ["near " * 2000 + "far"])


def test_an_error_of_the_reader_stays_what_it_was():
    def texts():
        yield "one"
        raise UserError("train.de, line 2: not UTF-8")

    with pytest.raises(UserError, match="line 2"):
        vocabulary("bpe", 20, texts())


def test_small_corpora_are_taken_whole_and_large_ones_sampled_evenly():
    assert sample_texts("abc", 3) == ["a", "b", "c"]
    sample = [int(text) for text in sample_texts(map(str, range(10_000)), 500)]
    assert len(set(sample)) == 500
    assert 4500 < sum(sample) / 500 < 5500  # standard error 129


def test_sampling_is_the_same_in_every_process():
    assert sample_texts("abcdefghij", 3) == ["f", "b", "g"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_with_bytes_to_fall_back_to_no_character_is_unknown(kind):
    config = TokenizerConfig(kind, 256 + 4 + NUM_CHARACTERS + 2, byte_fallback=True)
    tokenizer = Tokenizer(train_model(config, TEXTS, "joint"))
    ids = tokenizer.encode("one \u6f22 two")
    assert not tokenizer.count_unknown(ids)
    assert tokenizer.decode(ids) == "one \u6f22 two"
    with pytest.raises(ValueError, match="byte_fallback asks for kind bpe or unigram, not char"):
        TokenizerConfig("char", byte_fallback=True)
