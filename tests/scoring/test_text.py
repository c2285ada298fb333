"""Scores against values worked out by hand."""

import functools
import math
import random

import pytest
import sacrebleu

from transformer_jax.scoring import METRICS, best_by
from transformer_jax.scoring.text import (
    edits,
    exact_match,
    score_translations,
    translation_edit_rate,
    word_error_rate,
)

MAT = "the cat sat on the mat"


def test_equal_text_scores_100():
    scores = score_translations([MAT, "a b c d"], [MAT, "a b c d"])
    assert set(scores) == {"bleu", "bleu_lowercase", "chrf", "signature"}
    for key in ("bleu", "bleu_lowercase", "chrf"):
        assert scores[key] == pytest.approx(100)


def test_nothing_shared_scores_0():
    scores = score_translations(["x y z w"], ["a b c d"])
    assert scores["chrf"] == 0
    assert scores["bleu"] == 0


def test_brevity_penalty():
    """Every n-gram of 5 words is right, 6 were wanted: BLEU is the penalty exp(1 - 6/5) alone."""
    assert score_translations([MAT[:-4]], [MAT])["bleu"] == pytest.approx(100 * math.exp(-0.2))


def test_ngram_precisions_over_the_corpus():
    """The last of 6 + 5 words is wrong: 10/11, 8/9, 6/7 and 4/5, counted over both sentences."""
    hypotheses = ["the cat sat on the mat", "we see the old dog"]
    references = ["the cat sat on the mat", "we see the old cat"]
    expected = 100 * (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** (1 / 4)
    assert score_translations(hypotheses, references)["bleu"] == pytest.approx(expected)


def test_chrf():
    """Of n-grams of "abc", 2/3, 1/2 and 0 of 1 are in "abd", and as many back: F2 = 7/18."""
    assert score_translations(["abc"], ["abd"])["chrf"] == pytest.approx(100 * 7 / 18)


def test_case_counts_only_in_the_cased_score():
    scores = score_translations(["The Cat Sat On The Mat"], [MAT])
    assert scores["bleu"] == 0
    assert scores["bleu_lowercase"] == pytest.approx(100)


def test_text_is_tokenized_by_13a():
    """Detokenized text: the full stop is a token of its own, not part of "mat."."""
    assert score_translations([MAT + "."], [MAT + " ."])["bleu"] == pytest.approx(100)


def test_signature():
    expected = f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert score_translations([MAT], [MAT])["signature"] == expected


def test_empty_translation_is_a_line_like_any_other():
    assert 0 < score_translations([MAT, ""], [MAT, "a dog"])["bleu"] < 100


def test_unequal_numbers_of_lines():
    with pytest.raises(ValueError, match="2 translations .* 1 references"):
        score_translations(["a", "b"], ["a"])


def test_nothing_to_score():
    with pytest.raises(ValueError, match="no translations"):
        score_translations([], [])


# FOLDED tests/scoring/test_text.py: Error rates against an exhaustive search, sacreBLEU's
# own cases and values worked out by hand.


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


def test_the_share_of_outputs_that_are_their_references():
    outputs = ["I_JUMP I_WALK", "I_JUMP", " I_RUN  I_RUN", ""]
    references = ["I_JUMP I_WALK", "I_JUMP I_JUMP", "I_RUN I_RUN", ""]
    assert exact_match(outputs, references) == {"exact_match": 0.75}


def test_outputs_without_their_references_are_refused():
    with pytest.raises(ValueError, match="no outputs"):
        exact_match([], [])
    with pytest.raises(ValueError, match="zip"):
        exact_match(["a"], ["a", "b"])
