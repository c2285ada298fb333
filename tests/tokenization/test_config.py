# SPDX-License-Identifier: Apache-2.0
"""Invalid values of the section `tokenizer`."""

from tests.refusals import assert_refused
from transformer_jax.tokenization import TokenizerConfig


def test_invalid_values_are_refused():
    assert_refused(
        {
            "kind is 'byte', not one of bpe, ": lambda: TokenizerConfig(kind="byte"),
            "did you mean byte_bpe?": lambda: TokenizerConfig(kind="byte"),
            "vocab_size 4 is too small": lambda: TokenizerConfig(vocab_size=4),
            "with kind byte_bpe use 260": lambda: TokenizerConfig("byte_bpe", 259),
            "with kind wordpiece use 6": lambda: TokenizerConfig("wordpiece", 5),
            "character_coverage is 0.5": lambda: TokenizerConfig(character_coverage=0.5),
            "set path to its": lambda: TokenizerConfig("file"),
            "character_coverage is 1.01": lambda: TokenizerConfig(character_coverage=1.01),
        }
    )


def test_the_least_vocabularies_are_accepted():
    for kind, size in (("bpe", 5), ("byte_bpe", 260), ("wordpiece", 6)):
        assert TokenizerConfig(kind, size).vocab_size == size
