# SPDX-License-Identifier: Apache-2.0
"""Invalid values of the section `tokenizer`."""

import pytest

from transformer_jax.tokenization import TokenizerConfig


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(
        ValueError, match="kind is 'byte', not one of bpe, .*; did you mean byte_bpe?"
    ):
        TokenizerConfig(kind="byte")


def test_a_vocabulary_must_be_larger_than_its_special_tokens():
    assert TokenizerConfig(vocab_size=5).vocab_size == 5
    with pytest.raises(ValueError, match="vocab_size 4 is too small"):
        TokenizerConfig(vocab_size=4)


@pytest.mark.parametrize(("kind", "least"), [("byte_bpe", 260), ("wordpiece", 6)])
def test_a_vocabulary_must_fit_the_tokens_that_it_always_contains(kind, least):
    assert TokenizerConfig(kind, least).vocab_size == least
    with pytest.raises(
        ValueError, match=f"vocab_size {least - 1} is too small: with kind {kind} use {least} or"
    ):
        TokenizerConfig(kind, least - 1)


@pytest.mark.parametrize("coverage", [0.5, 1.01])
def test_character_coverage_must_be_in_range(coverage):
    with pytest.raises(ValueError, match="character_coverage"):
        TokenizerConfig(character_coverage=coverage)
