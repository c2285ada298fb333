# SPDX-License-Identifier: Apache-2.0
"""Training byte-level BPE and WordPiece: order of ids, sizes, the same result in every process."""

import hashlib
import os
import subprocess
import sys

import pytest

from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.huggingface import BYTE_CHARACTERS, HuggingFaceTokenizer
from transformer_jax.tokenization.vocabularies import train_vocabulary

TEXTS = ["the old man sees the small dogs", "the old dogs see a smaller man, and more"] * 2


def vocabulary(kind, vocab_size, texts=TEXTS, **changes):
    model = train_vocabulary(TokenizerConfig(kind, vocab_size, **changes), texts, "joint")
    tokenizer = HuggingFaceTokenizer(model)
    return tokenizer.pieces(range(tokenizer.vocab_size))


def test_byte_bpe_ids_are_specials_then_bytes_then_merges():
    assert vocabulary("byte_bpe", 260) == ["⟨pad⟩", "⟨unk⟩", "⟨s⟩", "⟨/s⟩", *BYTE_CHARACTERS]
    pieces = vocabulary("byte_bpe", 268)
    assert len(pieces) == 268
    assert "the" in pieces[260:]


def test_wordpiece_ids_are_specials_then_characters_then_words():
    pieces = vocabulary("wordpiece", 60, ["an ant and", "an ant"])
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert pieces[5:12] == ["a", "d", "n", "t", "##d", "##n", "##t"]
    assert pieces[12:] == ["an", "ant"]  # "and" occurs once


@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece"])
def test_size_is_an_upper_bound(kind):
    assert 30 < len(vocabulary(kind, 1000)) < 400
    assert len(vocabulary(kind, 275 if kind == "byte_bpe" else 50)) in (275, 50)


def test_a_vocabulary_may_be_the_alphabet_alone():
    assert len(vocabulary("wordpiece", 12, ["an ant and"])) == 12


def test_only_the_most_frequent_of_many_characters_get_a_piece():
    many = [chr(i) for i in range(0x4E00, 0x4E00 + 1003)]
    pieces = vocabulary("wordpiece", 1100, [" ".join([*many * 2, "㐀", *many[:1]])])
    assert len(set(pieces) & set(many)) == 1000
    assert many[0] in pieces and "㐀" not in pieces and many[-1] not in pieces


def test_special_tokens_in_training_text_are_words_and_punctuation():
    pieces = vocabulary("wordpiece", 60, ["a [MASK] or [CLS]"] * 3)
    assert {"[", "]", "MASK", "CLS"} < set(pieces)
    assert [piece for piece in pieces[5:] if len(piece) > 1 and set("[]") & set(piece)] == []


PROGRAM = f"""
import hashlib, os
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.vocabularies import train_vocabulary
model = train_vocabulary(TokenizerConfig("wordpiece", 60), {TEXTS!r}, "joint")
print(hashlib.sha256(model).hexdigest())
assert "TOKENIZERS_PARALLELISM" not in os.environ
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
"""


def test_another_process_trains_the_same_and_forks_without_a_warning():
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    other = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    here = train_vocabulary(TokenizerConfig("wordpiece", 60), TEXTS, "joint")
    assert (other.stdout.strip(), other.stderr) == (hashlib.sha256(here).hexdigest(), "")


def test_training_restores_the_environment_variable_of_threads(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    vocabulary("byte_bpe", 262)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
