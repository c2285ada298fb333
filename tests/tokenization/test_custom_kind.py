# SPDX-License-Identifier: Apache-2.0
"""A user's own tokenizer kind: one registration is all that it needs."""

import json

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    DEFAULT_SPECIALS,
    TOKENIZERS,
    Tokenizer,
    TokenizerConfig,
    TokenizerKind,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.specials import NUM_SPECIALS, UNK


class Letters:
    """Tokenizer of letters; a word begins at a space."""

    specials = DEFAULT_SPECIALS

    def __init__(self, content):
        self.letters = json.loads(content)
        self.vocab_size = NUM_SPECIALS + len(self.letters)

    def encode(self, text):
        return [self.letters.index(c) + NUM_SPECIALS if c in self.letters else UNK for c in text]

    def encode_words(self, words):
        return [self.encode(word) or [UNK] for word in words]

    def decode(self, ids):
        return "".join(self.letters[i - NUM_SPECIALS] for i in ids if i >= NUM_SPECIALS)

    def pieces(self, ids):
        return [self.decode([i]) or "⟨special⟩" for i in ids]

    def starts_word(self, ids):
        return [i < NUM_SPECIALS or self.decode([i]) == " " for i in ids]

    def count_unknown(self, ids):
        return list(ids).count(UNK)


def train_letters(config, texts, name):
    letters = sorted(set("".join(texts)), reverse=config.lowercase)
    return json.dumps(letters[: config.vocab_size - NUM_SPECIALS]).encode()


READ = ("tokenizer.lowercase", "tokenizer.path")


@pytest.fixture
def letters():
    before = dict(TOKENIZERS)
    yield TOKENIZERS.register(
        "letters", TokenizerKind(train_letters, Letters, ".letters", reads=READ)
    )
    TOKENIZERS.restore(before)


def test_a_custom_kind_is_trained_stored_and_loaded(letters, tmp_path):
    config = TokenizerConfig("letters", 20, lowercase=True)
    train_tokenizers(config, {"text": ["a dog", "a cat"]}, tmp_path / "tokenizer")
    tokenizer: Tokenizer = load_tokenizers(tmp_path / "tokenizer")["text"]
    assert (tmp_path / "tokenizer" / "text.letters").read_bytes() == train_letters(
        config, ["a dog", "a cat"], ""
    )
    assert tokenizer.decode(tokenizer.encode("a cog")) == "a cog"
    assert tokenizer.count_unknown(tokenizer.encode("bad")) == 1


def test_config_fields_that_a_custom_kind_does_not_read_are_refused(letters, tiny_config):
    of_bytes = {"tokenizer.kind": "letters", "tokenizer.byte_fallback": True}
    with pytest.raises(UserError, match=r"byte_fallback .* 'letters' does not read it \(bpe, uni"):
        tiny_config(of_bytes)
    with pytest.raises(UserError, match=r"'char' does not read it \(file, letters would"):
        tiny_config({"tokenizer.kind": "char", "tokenizer.path": "letters.txt"})


def test_loading_without_the_custom_kinds_module_is_an_error(letters, tmp_path):
    train_tokenizers(TokenizerConfig("letters"), {"text": ["a dog"]}, tmp_path / "tokenizer")
    TOKENIZERS.restore({name: TOKENIZERS[name] for name in TOKENIZERS if name != "letters"})
    with pytest.raises(UserError, match=r"sides.json: .* no registered kind stores \*.letters"):
        load_tokenizers(tmp_path / "tokenizer")
