# SPDX-License-Identifier: Apache-2.0
import json

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


def test_an_exported_tokenizer_reads_lower_case_too(tmp_path):
    config = TokenizerConfig("bpe", vocab_size=40, lowercase=True)
    sides = train_tokenizers(config, {"text": TEXT}, tmp_path / "tokenizer", {})
    files = transformers_files(sides, "decoder_only")
    theirs = library.Tokenizer.from_str(files["tokenizer.json"].decode())
    ours, line = sides.text("text"), "The OLD  Man sees"
    assert theirs.encode(line, add_special_tokens=False).ids == ours.encode(line)
    assert ours.count_unknown(ours.encode(line)) == 0
