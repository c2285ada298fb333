"""A tokenizer gives text back, keeps its special ids to itself, and says what it does not know."""

import io
import pickle

import numpy as np
import pytest
import sentencepiece

from transformer_jax.tokenization import BOS, EOS, KINDS, PAD, UNK, Tokenizer, TokenizerConfig
from transformer_jax.tokenization.training import train_model

TEXTS = [
    "The old man sees the small dog.",
    "Der alte Mann sieht den kleinen Hund, weil er müde ist.",
    "“Größe” – isn't it 42 % of what we'd see?",
]


def trained(kind, vocab_size=65):
    return Tokenizer(train_model(TokenizerConfig(kind, vocab_size), TEXTS, "joint"))


@pytest.fixture(scope="module")
def tokenizer():
    return trained("bpe")


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_text_comes_back_as_it_was(kind):
    tokenizer = trained(kind, vocab_size=53)  # the most that unigram finds in so little text
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_white_space_is_normalised(tokenizer):
    assert tokenizer.decode(tokenizer.encode("  the\told \u00a0 man\n")) == "the old man"


def test_empty_text_has_no_ids(tokenizer):
    assert tokenizer.encode("") == tokenizer.encode(" \t ") == []
    assert tokenizer.decode([]) == ""


def test_special_tokens_written_out_in_text_are_only_text(tokenizer):
    assert not {PAD, BOS, EOS} & set(tokenizer.encode("<s> the </s> <pad>"))


def test_decode_drops_specials_and_stops_at_none(tokenizer):
    old, man = tokenizer.encode("old"), tokenizer.encode("man")
    ids = np.array([BOS, *old, UNK, EOS, *man, EOS, PAD, PAD], np.int32)
    assert tokenizer.decode(ids) == "old man"


def test_unknown_characters_are_counted(tokenizer):
    assert tokenizer.count_unknown(tokenizer.encode("the old man")) == 0
    assert tokenizer.count_unknown(tokenizer.encode("the 老 man 人")) == 2


def test_half_a_surrogate_pair_does_not_stop_an_encoding(tokenizer):
    assert tokenizer.decode(tokenizer.encode("the \ud83d man")).split() == ["the", "man"]


def test_word_kind_splits_on_spaces():
    tokenizer = trained("word")
    assert tokenizer.pieces(tokenizer.encode("old man sees unseen")) == [
        "▁old",
        "▁man",
        "▁sees",
        "<unk>",
    ]


def test_char_kind_splits_into_characters():
    tokenizer = trained("char")
    assert tokenizer.pieces(tokenizer.encode("old man")) == list("▁old▁man")


def test_pickled_tokenizer_encodes_alike(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
    assert again.vocab_size == tokenizer.vocab_size == 65


@pytest.mark.parametrize("model", [b"", b"no model"])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ValueError, match=r"empty|no sentencepiece model"):
        Tokenizer(model)


def test_model_with_other_special_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # whose defaults are unk 0, bos 1, eos 2, no pad
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=52
    )
    with pytest.raises(ValueError, match="pad, unk, bos, eos"):
        Tokenizer(model.getvalue())
