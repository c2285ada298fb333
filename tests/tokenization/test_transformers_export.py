# SPDX-License-Identifier: Apache-2.0
import json
import unicodedata

import pytest
import tokenizers as library

from transformer_jax.tokenization import TokenizerConfig, train_tokenizers
from transformer_jax.tokenization.transformers_export import transformers_files

TEXT = ["the old man sees a dog\n", "a young woman walks home\n"]


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe"])
def test_bos_of_an_exported_language_model_is_the_token_that_begins_its_texts(tmp_path, kind):
    """Other libraries add `bos_token` to a text, so it must be the token used in training."""
    config = TokenizerConfig(kind, vocab_size=300 if kind == "byte_bpe" else 40)
    sides = train_tokenizers(config, {"text": TEXT}, tmp_path / "tokenizer", {})
    ours = sides.text("text")
    files = transformers_files(sides, "decoder_only")
    named = json.loads(files["tokenizer_config.json"])
    theirs = library.Tokenizer.from_str(files["tokenizer.json"].decode())
    for line in TEXT:
        expected = [ours.specials.first, *ours.encode(line.strip())]
        assert theirs.encode(line.strip()).ids == expected
    assert theirs.token_to_id(named["bos_token"]) == ours.specials.first
    assert theirs.token_to_id(named["eos_token"]) == ours.specials.eos


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe"])
def test_added_tokens_follow_those_of_text(tmp_path, kind):
    config = TokenizerConfig(kind, vocab_size=300 if kind == "byte_bpe" else 40, extra_tokens=2)
    sides = train_tokenizers(config, {"text": TEXT}, tmp_path / "tokenizer", {}, True)
    ours = sides.text("text")
    files = transformers_files(sides, "encoder_decoder")
    theirs = library.Tokenizer.from_str(files["tokenizer.json"].decode())
    line = "the [MASK] sees a dog"
    assert theirs.encode(line, add_special_tokens=False).ids == ours.encode(line)
    extra = ours.specials.extra
    assert [theirs.token_to_id(piece) for piece in ours.pieces(extra)] == [*extra]


ODD = ["The OLD  Man", "Tiếng Việt rất đẹp", "나는 학교에 간다", "ｶﾞｷﾞﾊﾟ", "ﬁve ½", "Żółć", "Z̧"]
LETTERS = [chr(i) for i in range(32, 0x2FFFF) if unicodedata.category(chr(i))[0] in "LMNPS"]


@pytest.mark.parametrize(
    ("normalization", "lowercase"), [("nmt_nfkc", False), ("nmt_nfkc", True), ("identity", True)]
)
def test_other_spellings_have_the_tokens_of_the_run(tmp_path, normalization, lowercase):
    """Lower case, decomposed letters (as macOS writes them) and half-width kana."""
    config = TokenizerConfig("bpe", vocab_size=90, normalization=normalization, lowercase=lowercase)
    sides = train_tokenizers(config, {"text": [*TEXT, *ODD]}, tmp_path / "tokenizer", {})
    ours = sides.text("text")
    files = transformers_files(sides, "decoder_only")
    theirs = library.Tokenizer.from_str(files["tokenizer.json"].decode())
    lines = [*ODD, *LETTERS[::7]]
    lines += [unicodedata.normalize("NFD", line) for line in lines]
    encodings = theirs.encode_batch(lines, add_special_tokens=False)
    different = [
        line
        for line, encoding in zip(lines, encodings, strict=True)
        if encoding.ids != ours.encode(line) and "▁" not in line
    ]
    assert different == []
    if lowercase:
        assert ours.encode(ODD[0]) == ours.encode(ODD[0].lower())
