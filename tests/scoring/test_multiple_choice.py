"""Accuracy of choices, by hand."""

import pytest

from transformer_jax.scoring.multiple_choice import multiple_choice


def test_the_likeliest_and_the_likeliest_for_its_length():
    log_probs = [[-4.0, -6.0], [-3.0, -2.0], [-5.0, -4.0, -9.0]]
    choices = [["ab", "abcdef"], ["a", "b"], ["abcde", "ab", "c"]]
    found = multiple_choice(log_probs, choices, [1, 1, 0])
    # Raw: 0, 1, 1. By length: -2 and -1; -3 and -2; -1, -2 and -9.
    assert found == {"accuracy": pytest.approx(1 / 3), "accuracy_by_length": 1.0}
    with pytest.raises(ValueError, match="no examples"):
        multiple_choice([], [], [])
