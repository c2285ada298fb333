# SPDX-License-Identifier: Apache-2.0
"""Labels, symbols and word classes: ids, storage, and unknown entries."""

import pickle

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import Labels, SymbolTokenizer, TokenizerConfig
from transformer_jax.tokenization.word_level import (
    WordClassTokenizer,
    train_word_classes,
    word_class,
)

TAGS = Labels(("B-PER", "I-PER", "O"))


def test_ids_are_the_indices_of_names():
    assert [TAGS.encode(name) for name in ("B-PER", "I-PER", "O")] == [0, 1, 2]
    assert [TAGS.decode(i) for i in range(3)] == list(TAGS.names)
    assert len(TAGS) == TAGS.vocab_size == 3


def test_an_unknown_label_is_named_with_the_known_ones():
    with pytest.raises(UserError) as caught:
        TAGS.encode("I-LOC")
    assert str(caught.value) == (
        "label 'I-LOC' was never seen in training; the labels are 'B-PER', 'I-PER', 'O'"
    )


def test_only_a_few_of_many_known_labels_are_listed():
    with pytest.raises(UserError, match=r"are '000', '001', '002', '003', '004', ... \(900 in all"):
        Labels(tuple(f"{i:03}" for i in range(900))).encode("x")


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_names_must_be_distinct(names):
    with pytest.raises(ValueError, match="labels must"):
        Labels(names)


@pytest.mark.parametrize("name", ["größer", "two words", 'a"\n', "\ud800", ""])
def test_labels_survive_json(name):
    labels = Labels(tuple(sorted(("m", name))))
    assert Labels.from_json(labels.to_json()) == labels


SYMBOLS = SymbolTokenizer(["(NP", ")", "NN"])


def test_each_symbol_is_a_token_after_the_special_ones():
    assert SYMBOLS.vocab_size == 7
    assert SYMBOLS.encode("(NP NN  XX )") == [4, 6, 1, 5]
    assert SYMBOLS.encode("") == []
    assert SYMBOLS.encode_words(["NN", "XX"]) == [[6], [1]]
    assert SYMBOLS.decode([2, 4, 6, 1, 5, 3]) == "(NP NN )"
    assert SYMBOLS.pieces([2, 4, 3]) == ["⟨s⟩", "(NP", "⟨/s⟩"]
    assert SYMBOLS.starts_word([4, 5]) == [True, True]
    assert SYMBOLS.count_unknown([4, 1, 1]) == 2


def test_symbols_are_stored_as_a_json_list():
    for copy in (SymbolTokenizer.from_json(SYMBOLS.to_json()), pickle.loads(pickle.dumps(SYMBOLS))):
        assert copy.symbols == SYMBOLS.symbols and copy.encode("NN )") == [6, 5]


def test_special_tokens_are_refused_as_symbols():
    with pytest.raises(ValueError, match="differ"):
        SymbolTokenizer(["⟨pad⟩"])


TEXTS = ["the dog the cat\n", "the dogs walking the dog .\n", "Paris the dog talking 1984\n"]


CLASSES = """
walking UNK-LC-ing, Germans UNK-CAPS-s, NASA UNK-CAPS, iPhone UNK-LC, 1984 UNK-NUM,
1990s UNK-LC-NUM-s, 3D UNK-CAPS-NUM, well-known UNK-LC-DASH, nation UNK-LC-ion, entity UNK-LC-ity,
happy UNK-LC-y, ... UNK, Ünded UNK-CAPS-ed, Paris UNK-CAPS, glass UNK-LC, ring UNK-LC, city UNK-LC
"""
"""The last four have no ending: -is and -ss are no plurals, and the others are too short."""


def test_the_class_of_a_word():
    expected = dict(pair.split() for pair in CLASSES.split(","))
    assert {word: word_class(word) for word in expected} == expected


def trained(vocab_size):
    config = TokenizerConfig("word_classes", vocab_size)
    return WordClassTokenizer.from_json(train_word_classes(config, TEXTS, "source"))


def test_words_that_occur_once_are_replaced_by_their_class():
    tokenizer = trained(50)
    classes = ("UNK", "UNK-CAPS", "UNK-LC", "UNK-LC-ing", "UNK-LC-s", "UNK-NUM")
    assert tokenizer.symbols == ("the", "dog", *classes)
    words = ["the", "talking", "jumping", "cat", "1812"]
    assert tokenizer.pieces(sum(tokenizer.encode_words(words), [])) == [
        *("the", "UNK-LC-ing", "UNK-LC-ing", "UNK-LC", "UNK-NUM")
    ]
    assert tokenizer.decode(tokenizer.encode("the fly")) == "the UNK-LC"


def test_an_unknown_class_becomes_the_nearest_known_one():
    tokenizer = trained(50)
    words = ["nation", "Nation", "x-ray", "3D"]
    found = tokenizer.pieces(sum(tokenizer.encode_words(words), []))
    assert found == ["UNK-LC", "UNK-CAPS", "UNK-LC", "UNK-CAPS"]


def test_a_small_vocabulary_has_the_most_frequent_words():
    assert trained(5).symbols == ("UNK-LC",)
    assert trained(5).encode("Paris the") == [1, 4]
    assert len(trained(8).symbols) == 4
