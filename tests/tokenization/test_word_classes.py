import pytest

from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.word_classes import (
    ClassedWords,
    train_word_classes,
    word_class,
)

TEXTS = ["the dog the cat\n", "the dogs walking the dog .\n", "Paris the dog talking 1984\n"]


@pytest.mark.parametrize(
    "word, name",
    [
        ("walking", "UNK-LC-ing"),
        ("Paris", "UNK-CAPS"),  # no plural: -is
        ("Germans", "UNK-CAPS-s"),
        ("NASA", "UNK-CAPS"),
        ("iPhone", "UNK-LC"),
        ("1984", "UNK-NUM"),
        ("1990s", "UNK-LC-NUM-s"),
        ("3D", "UNK-CAPS-NUM"),
        ("well-known", "UNK-LC-DASH"),
        ("nation", "UNK-LC-ion"),
        ("ring", "UNK-LC"),  # too short for an ending
        ("glass", "UNK-LC"),
        ("city", "UNK-LC"),
        ("entity", "UNK-LC-ity"),
        ("happy", "UNK-LC-y"),
        ("...", "UNK"),
        ("Ünded", "UNK-CAPS-ed"),
    ],
)
def test_the_class_of_a_word(word, name):
    assert word_class(word) == name


def trained(vocab_size):
    config = TokenizerConfig("word_classes", vocab_size)
    return ClassedWords.from_json(train_word_classes(config, TEXTS, "source"))


def test_words_that_occur_once_are_learned_by_class():
    tokenizer = trained(50)
    classes = ("UNK", "UNK-CAPS", "UNK-LC", "UNK-LC-ing", "UNK-LC-s", "UNK-NUM")
    assert tokenizer.symbols == ("the", "dog", *classes)
    words = ["the", "talking", "jumping", "cat", "1812"]
    assert tokenizer.pieces(sum(tokenizer.encode_words(words), [])) == [
        *("the", "UNK-LC-ing", "UNK-LC-ing", "UNK-LC", "UNK-NUM")
    ]
    assert tokenizer.decode(tokenizer.encode("the fly")) == "the UNK-LC"


def test_a_class_that_was_never_seen_is_the_nearest_one_that_was():
    tokenizer = trained(50)
    words = ["nation", "Nation", "x-ray", "3D"]
    found = tokenizer.pieces(sum(tokenizer.encode_words(words), []))
    assert found == ["UNK-LC", "UNK-CAPS", "UNK-LC", "UNK-CAPS"]


def test_the_most_frequent_ones_stay_in_a_small_vocabulary():
    assert trained(5).symbols == ("UNK-LC",)
    assert trained(5).encode("Paris the") == [1, 4]
    assert len(trained(8).symbols) == 4
