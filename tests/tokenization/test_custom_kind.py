# SPDX-License-Identifier: Apache-2.0
"""A user's own tokenizer kind: one registration is all that it needs."""

import runpy

import pytest

from tests.conftest import ROOT
from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    DEFAULT_SPECIALS,
    TOKENIZERS,
    TokenizerConfig,
    TokenizerKind,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.specials import NUM_SPECIALS
from transformer_jax.tokenization.tokenizer import BaseTokenizer

RECIPE = ROOT / "docs" / "recipes" / "tokenizer.py"
READ = ("tokenizer.lowercase", "tokenizer.path")


@pytest.fixture
def letters(with_entries):
    """A kind with the functions of the recipe, which `tests/docs/test_recipes` trains."""
    with_entries(TOKENIZERS, {})
    recipe = runpy.run_path(str(RECIPE))
    kind = TokenizerKind(recipe["train"], recipe["load"], ".letters", reads=READ)
    with_entries(TOKENIZERS, {"letters": kind})


def test_a_custom_kind_is_trained_stored_and_loaded(letters, tmp_path):
    config = TokenizerConfig("letters", lowercase=True)
    train_tokenizers(config, {"text": ["a dog"]}, tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "text.letters").read_bytes() == b"utf-8"
    tokenizer = load_tokenizers(tmp_path / "tokenizer")["text"]
    assert tokenizer.decode(tokenizer.encode("a cög")) == "a cög"


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


def test_a_custom_tokenizer_may_learn_its_number_of_ids_late():
    class Letters(BaseTokenizer):
        specials = DEFAULT_SPECIALS

        def __init__(self, letters):
            self.vocab_size = NUM_SPECIALS + len(letters)

        def pieces(self, ids):
            return [str(i) for i in ids]

    assert Letters("abc").summary()["vocab_size"] == NUM_SPECIALS + 3
