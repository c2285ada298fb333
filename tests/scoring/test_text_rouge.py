"""ROUGE against an exhaustive search and values worked out by hand."""

import itertools
import random

import pytest

from transformer_jax.scoring.text import common_subsequence, rouge


def longest(a, b):
    """Every subsequence of one, looked for in the other."""

    def is_in(part):
        rest = iter(b)
        return all(x in rest for x in part)

    sizes = range(len(a), 0, -1)
    return next((n for n in sizes if any(map(is_in, itertools.combinations(a, n)))), 0)


def test_the_common_subsequence_is_the_longest():
    rng = random.Random(0)
    for _ in range(200):
        a, b = ("".join(rng.choices("abc", k=rng.randint(0, 8))) for _ in range(2))
        assert common_subsequence(a, b) == longest(a, b), (a, b)


def test_lins_example():
    """ "police killed the gunman" beside "police kill the gunman" and "the gunman kill police"."""
    reference = "police killed the gunman"
    first, second = (
        rouge([output], [reference])
        for output in ("police kill the gunman", "the gunman kill police")
    )
    assert first == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})
    assert second == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 2 / 4})


def test_case_and_signs_do_not_count_and_repeated_words_count_as_often_as_both_have_them():
    assert rouge(["The CAT."], ["the-cat"])["rougeL"] == 1.0
    assert rouge(["a a a b"], ["a a c"])["rouge1"] == pytest.approx(2 * 2 / 7)
    assert rouge(["Über 猫"], ["über 猫"])["rouge2"] == 1.0


def test_texts_count_alike_and_empty_ones_share_nothing():
    found = rouge(["a b", "", "x"], ["a b", "c d e f g", ""])
    assert found == {"rouge1": 1 / 3, "rouge2": 1 / 3, "rougeL": 1 / 3}


def test_what_cannot_be_compared_is_refused():
    for outputs, references in (([], []), (["a"], [])):
        with pytest.raises(ValueError, match=r"no outputs|zip\(\)"):
            rouge(outputs, references)
