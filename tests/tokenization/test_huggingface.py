# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE is lossless, WordPiece reads text as BERT's does, and no file changes either."""

import json

import numpy as np
import pytest

from transformer_jax.tokenization import TokenizerConfig, encode_plain
from transformer_jax.tokenization.huggingface import HuggingFaceTokenizer
from transformer_jax.tokenization.specials import BOS, EOS, MASK, PAD, UNK
from transformer_jax.tokenization.vocabularies import train_vocabulary

TEXTS = ["The old man sees the small dog.", "A man, a dog: it isn't unseen. <s> <s> [MASK]"] * 3


def trained(kind, vocab_size, **changes):
    return HuggingFaceTokenizer(
        train_vocabulary(TokenizerConfig(kind, vocab_size, **changes), TEXTS, "")
    )


@pytest.fixture(scope="module")
def byte_bpe():
    return trained("byte_bpe", 300)


@pytest.fixture(scope="module")
def wordpiece():
    return trained("wordpiece", 80)


SPACED, ODD = "  the\n\n\n old \t\r\n man ", "Größe 老人 \U0001f600 e\u0301\ufb01"


@pytest.mark.parametrize("text", ["", " ", "\n", SPACED, ODD, "\0\x0b▁Ġ##"])
def test_byte_bpe_is_lossless(byte_bpe, text):
    ids = byte_bpe.encode(text)
    assert byte_bpe.decode(ids) == text
    assert byte_bpe.count_unknown(ids) == 0


def test_byte_bpe_reads_no_special_tokens_in_a_text(byte_bpe):
    text = "<s>⟨s⟩</s>⟨/s⟩<unk>⟨unk⟩⟨pad⟩[MASK][CLS]"
    assert min(byte_bpe.encode(text)) > EOS
    assert byte_bpe.decode(byte_bpe.encode(text)) == text
    assert byte_bpe.specials.mask is None


def test_wordpiece_reads_mask_but_no_other_special_token_in_a_text(wordpiece):
    ids = wordpiece.encode("the [MASK] dog")
    assert ids[1] == MASK == wordpiece.specials.mask
    assert wordpiece.pieces(ids) == ["the", "[MASK]", "dog"]
    assert MASK not in encode_plain(wordpiece, "the [MASK] dog")
    assert not {PAD, BOS, EOS, MASK} & set(wordpiece.encode("[CLS] [SEP] [PAD] [UNK] [mask] CLS"))


def test_wordpiece_splits_words_and_punctuation(wordpiece):
    ids = wordpiece.encode("  the  man,a mandog\n\u200b")
    assert wordpiece.pieces(ids)[:4] == ["the", "man", ",", "a"]
    assert wordpiece.pieces(ids)[4] == "man" and wordpiece.pieces(ids)[5].startswith("##")
    assert wordpiece.decode(ids) == "the man, a mandog"


def test_a_word_that_cannot_be_spelled_is_unknown(wordpiece):
    ids = wordpiece.encode("the 老dog人")
    assert wordpiece.pieces(ids) == ["the", "[UNK]", "dog", "[UNK]"]
    assert wordpiece.count_unknown(ids) == 2


def test_case_is_kept_unless_lowercase(wordpiece):
    assert wordpiece.decode(wordpiece.encode("The the")) == "The the"
    lower = trained("wordpiece", 80, lowercase=True)
    assert lower.decode(lower.encode("THE thé")) == "the the"
    assert lower.encode("[MASK]") == [MASK]


def test_decode_drops_special_tokens_and_continues_after_eos(byte_bpe, wordpiece):
    for tokenizer in (byte_bpe, wordpiece):
        man, dog = tokenizer.encode("the man"), tokenizer.encode(" dog")
        ids = np.array([BOS, *man, UNK, EOS, *dog, EOS, PAD, PAD], np.int32)
        assert tokenizer.decode(ids) == "the man dog"
    assert wordpiece.decode([MASK]) == ""


def test_where_words_start(byte_bpe, wordpiece):
    ids = [BOS, *wordpiece.encode("the mandog."), EOS]
    assert wordpiece.pieces(ids)[1:4] == ["the", "man", "##d"]
    expected = [not piece.startswith("##") for piece in wordpiece.pieces(ids)]
    assert wordpiece.starts_word(np.array(ids)) == expected
    ids = [BOS, *byte_bpe.encode("zt at\nthe"), EOS]
    assert byte_bpe.pieces(ids) == ["⟨s⟩", "z", "t", "Ġa", "t", "Ċ", "the", "⟨/s⟩"]
    assert byte_bpe.starts_word(ids) == [True, True, False, True, False, True, False, True]
    assert byte_bpe.starts_word(ids[6:7]) == [True]  # the first id always begins a word


def test_words_are_encoded_separately(byte_bpe, wordpiece):
    words = ["man", "dog", "老", ""]
    assert byte_bpe.encode_words(words) == [byte_bpe.encode(t) for t in ("man", " dog", " 老", " ")]
    assert byte_bpe.encode_words([""]) == [[UNK]]
    assert wordpiece.encode_words(words) == [*map(wordpiece.encode, words[:2]), [UNK], [UNK]]


def test_lone_surrogates_are_replaced(byte_bpe, wordpiece):
    assert byte_bpe.decode(byte_bpe.encode("the \ud83d man")) == "the \ufffd man"
    assert wordpiece.decode(wordpiece.encode("the \ud83d man")) == "the man"


def written(kind, change):
    vocab_size = {"byte_bpe": 270, "wordpiece": 80}[kind]
    content = json.loads(train_vocabulary(TokenizerConfig(kind, vocab_size), TEXTS, ""))
    change(content)
    return json.dumps(content).encode()


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece"])
def test_a_file_cannot_change_how_text_is_processed(kind):
    """Only vocabulary and merges are read: no unlimited padding, no pattern, no dropout."""

    def change(content):
        content["padding"] = {"strategy": {"Fixed": 10**15}}
        content["normalizer"] = {"type": "Replace", "lowercase": False}
        content["pre_tokenizer"] = content["decoder"] = {"type": "Split"}
        content["added_tokens"] = [{"id": 3, "content": "dog"}]
        content["model"] |= {"dropout": 1.0, "continuing_subword_prefix": "m"}

    changed = HuggingFaceTokenizer(written(kind, change))
    plain = HuggingFaceTokenizer(written(kind, lambda content: None))
    assert changed.encode("the man's dog") == plain.encode("the man's dog")
