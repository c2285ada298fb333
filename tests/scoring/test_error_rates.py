"""Error rates against an exhaustive search, sacreBLEU's own cases and values worked out by hand."""

import functools
import random

import pytest

from transformer_jax.scoring import METRICS, best_by
from transformer_jax.scoring.error_rates import edits, translation_edit_rate, word_error_rate


@functools.cache
def fewest(a, b):
    """Every way to edit, tried."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        fewest(a[1:], b[1:]) + (a[0] != b[0]),
        fewest(a[1:], b) + 1,
        fewest(a, b[1:]) + 1,
    )


def test_edits_are_the_fewest():
    rng = random.Random(0)
    for _ in range(300):
        a, b = ("".join(rng.choices("abc", k=rng.randint(0, 7))) for _ in range(2))
        assert edits(a, b) == fewest(a, b), (a, b)


def test_rates_are_of_all_words():
    """One of three words replaced, and one of one missing: 2 of 4; 3 + 4 of 11 + 4 characters."""
    found = word_error_rate(["the  old dog", ""], ["the old cat", "men!"])
    assert found == {"wer": 2 / 4, "cer": 7 / 15}
    assert word_error_rate(["a b c"], ["a"])["wer"] == 2.0


def test_a_phrase_that_moved_is_one_edit():
    found = translation_edit_rate(["on the mat the cat sat"], ["the cat sat on the mat"])
    assert found["ter"] == pytest.approx(100 / 6)
    assert "nrefs:1" in found["ter_signature"]
    assert translation_edit_rate(["a b"], ["a b"])["ter"] == 0


@pytest.mark.parametrize("name", ["wer", "ter"])
def test_what_cannot_be_compared_is_refused(name):
    for outputs, references in ((["a"], ["a", "b"]), ([], []), (["a"], [" "])):
        with pytest.raises(ValueError, match=r"references|zip\(\)"):
            METRICS[name](outputs, references)


def test_fewer_errors_are_better():
    chosen = [best_by(name) for name in METRICS]
    assert chosen == ["bleu", "exact_match", "rougeL", "-ter", "-wer"]
