# SPDX-License-Identifier: Apache-2.0
"""Sentencepiece tokenizers: round trips, special tokens, unknown characters, whitespace."""

import io
import pickle
import random
import unicodedata

import numpy as np
import pytest
import sentencepiece

from transformer_jax.tokenization import SentencePieceTokenizer, TokenizerConfig
from transformer_jax.tokenization import sentencepiece as sentencepiece_tokenizer
from transformer_jax.tokenization.specials import BOS, EOS, PAD, UNK
from transformer_jax.tokenization.vocabularies import train_vocabulary

TEXTS = [
    "The old man sees the small dog.",
    "Der alte Mann sieht den kleinen Hund, weil er müde ist.",
    "“Größe” – isn't it 42 % of what we'd see?",
]


def trained(kind, vocab_size=65):
    return SentencePieceTokenizer(
        train_vocabulary(TokenizerConfig(kind, vocab_size), TEXTS, "joint")
    )


@pytest.fixture(scope="module")
def tokenizer():
    return trained("bpe")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_ordinary_text_survives_a_round_trip(kind):
    tokenizer = trained(kind, vocab_size=53)  # the largest size that unigram finds in this text
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_whitespace_is_normalized(tokenizer):
    assert tokenizer.decode(tokenizer.encode("  the\told \u00a0 man\n")) == "the old man"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"normalization": "nmt_nfkc"}) for kind in ("bpe", "char")),
        *((kind, {"normalization": "identity"}) for kind in ("unigram", "char")),
        ("word", {}),
    ],
)
def test_lowercase_keeps_all_but_case(kind, options):
    texts = [*TEXTS, "STRAẞE und Fuß, ÉTÉ"]
    config = TokenizerConfig(kind, 50, lowercase=True, **options)
    model = train_vocabulary(config, texts, "joint")
    tokenizer = SentencePieceTokenizer(model)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text.lower()
        assert tokenizer.encode(text) == tokenizer.encode(text.lower())
    if options == {"normalization": "nmt_nfkc"}:
        combined = unicodedata.normalize("NFD", "MÜDE  ÉTÉ")
        assert tokenizer.decode(tokenizer.encode(combined)) == "müde été"
    assert train_vocabulary(config, texts, "joint") == model  # names no temporary file


def test_empty_text_has_no_ids(tokenizer):
    assert tokenizer.encode("") == tokenizer.encode(" \t ") == []
    assert tokenizer.decode([]) == ""


def test_special_tokens_in_a_text_are_ordinary_characters(tokenizer):
    assert not {PAD, BOS, EOS} & set(tokenizer.encode("<s> the </s> <pad> ⟨s⟩ ⟨/s⟩ ⟨pad⟩"))


def test_decode_drops_special_tokens_and_continues_after_eos(tokenizer):
    old, man = tokenizer.encode("old"), tokenizer.encode("man")
    ids = np.array([BOS, *old, UNK, EOS, *man, EOS, PAD, PAD], np.int32)
    assert tokenizer.decode(ids) == "old man"


def test_unknown_characters_are_counted(tokenizer):
    assert tokenizer.count_unknown(tokenizer.encode("the old man")) == 0
    assert tokenizer.count_unknown(tokenizer.encode("the 老 man 人")) == 2


def test_lone_surrogates_are_replaced(tokenizer):
    assert tokenizer.decode(tokenizer.encode("the \ud83d man")).split() == ["the", "man"]


LINES = """First Citizen:
Before we proceed  any further, hear me speak.

All:
\tSpeak, speak.\r
  Resolved! Ünïcödé e\u0301 ﬁ \u200b \u3000 \U0001f600
"""


def identical(kind, vocab_size, texts=(LINES,), **changes):
    config = TokenizerConfig(kind, vocab_size, normalization="identity", **changes)
    return SentencePieceTokenizer(train_vocabulary(config, texts, "text"))


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_identity_is_lossless(kind):
    tokenizer = identical(kind, 52)  # the largest size that unigram finds
    few = ["\n", " ", "", "  me  ", "me\n\n  we\n", "we\tme ", " we", "\u200bwe\ufb01\u3000"]
    for text in (LINES, *few):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.count_unknown(ids) == 0


def test_identity_characters_are_those_of_the_text():
    tokenizer = identical("char", 1000)
    known = tokenizer.pieces(range(4, tokenizer.vocab_size))
    assert sorted(known) == sorted({*LINES.replace(" ", "▁")})
    assert tokenizer.encode("We") == tokenizer.encode("W") + tokenizer.encode("e")


def test_identity_with_byte_fallback_encodes_any_text():
    tokenizer = identical("bpe", 330, byte_fallback=True)
    assert tokenizer.decode(tokenizer.encode(" 老\n\n\x0b ▅")) == " 老\n\n\x0b ▅"


def test_identity_learns_whitespace():
    tokenizer = identical("char", 20, ["ab", "\n", "\r\n\n", ""])
    assert tokenizer.count_unknown(tokenizer.encode("a\r\nb")) == 0


@pytest.mark.parametrize("written", ["<s>", "<unk>", "</s>"])
def test_special_tokens_in_training_text_are_learned_as_characters(written):
    tokenizer = identical("char", 30, [f"a {written} b"])
    assert tokenizer.decode(tokenizer.encode(written)) == written


@pytest.mark.parametrize("refused", ["▅", "\0", "\ud800"])
def test_a_character_without_a_token_does_not_drop_its_text(refused, capfd):
    tokenizer = identical("char", 30, [f"a long {refused} book"])
    assert tokenizer.count_unknown(tokenizer.encode("a long book")) == 0
    assert capfd.readouterr() == ("", "")


def test_words_begin_at_spaces_and_line_breaks():
    tokenizer = identical("char", 60)
    ids = [BOS, *tokenizer.encode("we\nme A"), EOS]
    assert tokenizer.pieces(ids[1:-1]) == ["w", "e", "\n", "m", "e", "▁", "A"]
    assert tokenizer.starts_word(ids) == [True, True, False, True, False, False, True, False, True]
    assert tokenizer.starts_word(np.array(ids[2:4])) == [True, True]  # the first always does


def test_words_are_encoded_separately(tokenizer):
    words = ["old", "", "man.", "人"]
    ids = tokenizer.encode_words(words)
    assert ids[0] == tokenizer.encode("old") and ids[2] == tokenizer.encode("man.")
    assert ids[1] == [UNK] and UNK in ids[3]
    assert tokenizer.specials.mask is None


def test_identity_encodes_words_with_the_space_before_them():
    tokenizer = identical("char", 60)
    assert tokenizer.encode_words(["we", "me"]) == [tokenizer.encode("we"), tokenizer.encode(" me")]


@pytest.mark.parametrize("model", [b"", b"no model"])
def test_other_content_is_refused(model):
    with pytest.raises(ValueError, match=r"empty|no sentencepiece model"):
        SentencePieceTokenizer(model)


def test_a_model_with_other_special_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # defaults: unk 0, bos 1, eos 2, no pad
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=52
    )
    with pytest.raises(ValueError, match="pad, unk, bos, eos"):
        SentencePieceTokenizer(model.getvalue())


def test_encoding_word_by_word_equals_encoding_the_text(tokenizer):
    draw = random.Random(0)
    strange = (
        "abeö .,\t\n\u00a0\u200b\u0308\u0301\u00ad\u2581\u3000\ufb01\u00a8\u1161\u11a8☃😀\x00\x7f"
    )
    texts = ["".join(draw.choices(strange, k=draw.randrange(12))) for _ in range(2000)]
    whole = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.__reduce__()[1][0])
    for text in [*TEXTS, *texts, *texts]:  # the second time from the cache
        assert tokenizer.encode(text) == whole.encode(text)
    expected = [whole.encode(text) for text in texts]
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(texts) == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_batch_is_encoded_as_its_texts(kind, monkeypatch):
    monkeypatch.setattr(sentencepiece_tokenizer, "_MAX_WORDS", 5)  # forgets words between batches
    tokenizer = trained(kind, vocab_size=53)
    texts = [*TEXTS, "", " ", "dog \ud800", *(f"word{i}" for i in range(20))]
    assert tokenizer.encode_batch([]) == []
    for _ in range(2):
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_copies_in_other_processes_have_the_class_of_the_tokenizer():
    model = train_vocabulary(TokenizerConfig("char", 20), ["the old man"], "")
    assert type(pickle.loads(pickle.dumps(Loud(model)))) is Loud


class Loud(SentencePieceTokenizer):
    """A user's own kind."""
