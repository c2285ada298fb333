# SPDX-License-Identifier: Apache-2.0
"""1,000 lines of many scripts: published tokenizers give the ids and texts of their references."""

import functools
import gzip
import json
import re

import pytest
import sentencepiece

from tests.interop.published import FIXTURES
from transformer_jax.interop.config_json import find_family, read_json, special_ids, vocabulary_rows
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer

MODEL_OF = {
    "tokenizers/bert_vocab_txt": "bert",
    "tokenizers/gpt2_merges": "gpt2",
    "tokenizers/t5_spiece": "t5",
    "tokenizers/llama_model": "llama",
}
"""Directory without a model -> directory of the model with the same tokenizer."""

NAMES = sorted(
    path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("**/tokens.json.gz")
)
OWN_REFERENCE = ("tokenizers/t5_spiece", "tokenizers/llama_model")
MARIAN = ("marian", "marian_separate")


def unpacked(path):
    return json.loads(gzip.decompress((FIXTURES / path).read_bytes()))


LINES = unpacked("lines.json.gz")


@functools.cache
def reference(name):
    return unpacked(f"{name}/tokens.json.gz")


@functools.cache
def imported(name, side=None):
    """Imports a tokenizer: (tokenizer of a side, head and tail of its rows)."""
    keys = read_json(FIXTURES / MODEL_OF.get(name, name) / "config.json")
    architecture = find_family(keys)[0].architecture
    side = side or ("source" if architecture == "encoder_decoder" else "text")
    rows = vocabulary_rows(keys)[side]
    tokenizer = PublishedTokenizer(import_tokenizer(FIXTURES / name, side, special_ids(keys), rows))
    specials = tokenizer.specials
    if architecture == "decoder_only":
        return tokenizer, (specials.first,), ()
    frame = specials.translation if architecture == "encoder_decoder" else specials.encoder
    return tokenizer, frame.head, frame.tail


def rows_of(name, side=None):
    tokenizer, head, tail = imported(name, side)
    return [[*head, *tokenizer.encode(line), *tail] for line in LINES]


def texts_of(name, ids, side=None):
    return [imported(name, side)[0].decode(row) for row in ids[:200]]


def differing(ours, theirs):
    """Lines whose ids or texts differ."""
    return [LINES[i] for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*OWN_REFERENCE, *MARIAN)])
def test_lines_have_the_ids_and_texts_of_transformers(name):
    theirs, ours = reference(name), rows_of(name)
    keys = read_json(FIXTURES / MODEL_OF.get(name, name) / "config.json")
    if keys["model_type"] in ("gpt2", "qwen2"):
        # transformers adds nothing to a text. Here it begins with the end-of-text token of the
        # document before it, as in the training of these models.
        assert imported(name)[1] == (keys["eos_token_id"],)
        ours = [row[1:] for row in ours]
    assert ours == theirs["ids"]
    assert texts_of(name, ours) == theirs["decoded"]


@pytest.mark.parametrize("name", MARIAN)
@pytest.mark.parametrize("side", ["source", "target"])
def test_marians_lines_have_the_ids_and_texts_of_transformers(name, side):
    # Three differences are intended; comments explain each.
    prefix = "target_" if side == "target" else ""
    theirs, ours = reference(name)[f"{prefix}ids"], rows_of(name, side)
    if (name, side) == ("marian_separate", "target"):
        # A text that spells out <pad>: transformers uses the id of the source's vocabulary, which
        # is another piece in the target's. Here it is the target's own <pad>.
        vocab = read_json(FIXTURES / name / "target_vocab.json")
        pads = {vocab["<pad>"]: read_json(FIXTURES / name / "vocab.json")["<pad>"]}
        assert differing(ours, theirs) == [line for line in LINES if "<pad>" in line] != []
        assert [[pads.get(i, i) for i in row] for row in ours] == theirs
    else:
        assert ours == theirs
    expected = reference(name)[f"{prefix}decoded"]
    if (name, side) == ("marian_separate", "source"):
        # transformers decodes the source's ids with the target's vocabulary.
        assert texts_of(name, theirs, "target") == expected
        return
    # A language code represents no text here; transformers writes it out.
    texts = texts_of(name, theirs, side)
    assert differing(texts, expected) == [">>deu<< the dog", ">>deu<<the dog"]
    assert texts[LINES.index(">>deu<<the dog")] == "the dog"


def test_t5s_model_reads_as_sentencepiece_and_special_tokens_as_transformers():
    """Sentencepiece itself runs `spiece.model`. Special tokens in a text are read as transformers
    does, because sentencepiece does not. transformers' own conversion of the model treats "▁"
    differently in 14 lines.
    """
    name = "tokenizers/t5_spiece"
    tokenizer, _, tail = imported(name)
    theirs, ours = reference(name), rows_of(name)
    spelled_out = re.compile("<pad>|</s>|<unk>|<extra_id_[0-9]>")
    own = [[*row, *tail] for row in theirs["sentencepiece_ids"]]
    for line, row, by_library, by_transformers in zip(LINES, ours, own, theirs["ids"], strict=True):
        assert row == (by_transformers if spelled_out.search(line) else by_library)
    assert len(differing(ours, theirs["ids"])) == 14
    # Unknown pieces are dropped from a text; transformers keeps the space before the first.
    texts, unknown = texts_of(name, theirs["ids"]), tokenizer.specials.unk
    assert texts == [text.lstrip(" ") for text in theirs["decoded"]]
    assert all(
        unknown in theirs["ids"][LINES.index(line)] for line in differing(texts, theirs["decoded"])
    )


def test_llamas_model_reads_as_sentencepiece_piece_by_piece():
    """Sentencepiece itself runs `tokenizer.model`, as in the authors' code.

    transformers' conversion differs in 239 lines: it adds no space before a text that begins with
    one, nor after a special token. Special tokens in a text are read, although sentencepiece does
    not, and the parts between them are encoded separately.
    """
    name = "tokenizers/llama_model"
    tokenizer, head, _ = imported(name)
    theirs, ours = reference(name), rows_of(name)
    spelled_out = re.compile("(<unk>|<s>|</s>)")
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    model = sentencepiece.SentencePieceProcessor(str(FIXTURES / name / "tokenizer.model"))
    for line, row, by_library in zip(LINES, ours, theirs["sentencepiece_ids"], strict=True):
        parts = [part for part in spelled_out.split(line) if part]
        by_parts = [[special[part]] if part in special else model.encode(part) for part in parts]
        assert row == [*head, *(sum(by_parts, []) if spelled_out.search(line) else by_library)]
    assert len(differing(ours, theirs["ids"])) == 239
    assert texts_of(name, theirs["ids"]) == theirs["decoded"]
    texts = texts_of(name, theirs["sentencepiece_ids"])
    assert texts == theirs["sentencepiece_decoded"]
