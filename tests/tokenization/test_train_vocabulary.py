# SPDX-License-Identifier: Apache-2.0
"""Training a vocabulary of any kind: deterministic, silent, and an error if there is no text."""

from functools import partial

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.vocabularies import sample_texts, train_vocabulary

TEXTS = ["one two three two one", "two two three", "four one five"]
TRAINED = [name for name, kind in TOKENIZERS.items() if kind.train]
SIZE = {"byte_bpe": 266, "wordpiece": 40}


def vocabulary(kind, texts=TEXTS, size=None):
    model = train_vocabulary(TokenizerConfig(kind, size or SIZE.get(kind, 18)), texts, "joint")
    tokenizer = TOKENIZERS[kind].load(model)
    return tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", TRAINED)
def test_same_texts_give_the_same_vocabulary_and_nothing_is_printed(kind, capfd):
    assert vocabulary(kind) == vocabulary(kind)
    assert capfd.readouterr() == ("", "")


def test_texts_that_do_not_fit_the_config_are_refused(assert_refused):
    no_text = "joint tokenizer has no text"
    cases = [(kind, texts, None, no_text) for kind in TRAINED for texts in ([], ["", ""])]
    cases += [(kind, [" ", "\n"], None, no_text) for kind in ("bpe", "wordpiece")]
    cases += [("wordpiece", ["\x01"], 30, no_text), ("bpe", ["\u200b"], 20, "joint tokenizer")]
    for kind in ("bpe", "unigram"):
        cases.append((kind, TEXTS, 1000, "tokenizer.vocab_size 1000 is too large: the joint text"))
        cases.append((kind, TEXTS, 6, "tokenizer.vocab_size 6 is too small: the characters of the"))
    small = "tokenizer.vocab_size 10 is too small: the characters of the joint text alone need 12"
    cases.append(("wordpiece", ["an ant and"], 10, small))
    assert_refused(
        {
            f"{kind} {texts} {size}": (partial(vocabulary, kind, texts, size), words)
            for kind, texts, size, words in cases
        }
    )


@pytest.mark.parametrize("kind", TRAINED)
def test_training_accepts_lone_surrogates(kind):
    assert vocabulary(kind, [*TEXTS, "two \ud83d two"])


def test_an_error_while_reading_texts_is_passed_on():
    def texts():
        yield "one"
        raise UserError("train.de, line 2: not UTF-8")

    with pytest.raises(UserError, match="line 2"):
        vocabulary("bpe", texts())


def test_small_corpora_are_used_whole_and_large_ones_sampled_evenly():
    assert sample_texts("abc", 3) == ["a", "b", "c"]
    sample = [int(text) for text in sample_texts(map(str, range(10_000)), 500)]
    assert len(set(sample)) == 500
    assert 4500 < sum(sample) / 500 < 5500  # standard error 129


def test_sampling_is_the_same_in_every_process():
    assert sample_texts("abcdefghij", 3) == ["f", "b", "g"]
