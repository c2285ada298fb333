"""A tokenizer section that cannot work is refused before anything is read."""

import pytest

from transformer_jax.tokenization import TokenizerConfig


def test_unknown_kind_names_the_kinds():
    with pytest.raises(ValueError, match="'wordpiece' is unknown: use one of bpe, unigram, char"):
        TokenizerConfig(kind="wordpiece")


def test_vocabulary_must_hold_more_than_the_specials():
    assert TokenizerConfig(vocab_size=5).vocab_size == 5
    with pytest.raises(ValueError, match="vocab_size 4 is too small"):
        TokenizerConfig(vocab_size=4)


@pytest.mark.parametrize("coverage", [0.5, 1.01])
def test_coverage_outside_its_range(coverage):
    with pytest.raises(ValueError, match="character_coverage"):
        TokenizerConfig(character_coverage=coverage)
