"""Scores against values worked out by hand."""

import math

import pytest
import sacrebleu

from transformer_jax.scoring.bleu import score_translations

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
