# SPDX-License-Identifier: Apache-2.0
"""Metrics of text against exhaustive searches, sacreBLEU's cases, and values computed by hand."""

import functools
import itertools
import math
import random

import pytest
import sacrebleu

from transformer_jax.scoring import METRICS, best_by
from transformer_jax.scoring.text import (
    common_subsequence,
    edits,
    exact_match,
    rouge,
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
    """All n-grams of 5 words are right, but 6 are expected: BLEU is the penalty exp(1 - 6/5)."""
    assert score_translations([MAT[:-4]], [MAT])["bleu"] == pytest.approx(100 * math.exp(-0.2))


def test_ngram_precisions_over_the_corpus():
    """The last of 6 + 5 words is wrong: 10/11, 8/9, 6/7 and 4/5, counted over both sentences."""
    hypotheses = ["the cat sat on the mat", "we see the old dog"]
    references = ["the cat sat on the mat", "we see the old cat"]
    expected = 100 * (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** (1 / 4)
    assert score_translations(hypotheses, references)["bleu"] == pytest.approx(expected)


def test_chrf():
    """2/3, 1/2 and 0 of the n-grams of "abc" are in "abd", and the same backwards: F2 = 7/18."""
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


def test_an_empty_translation_counts():
    assert 0 < score_translations([MAT, ""], [MAT, "a dog"])["bleu"] < 100


@functools.cache
def fewest(a, b):
    """Edit distance by trying all edits."""
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


def test_error_rates_are_over_all_words():
    """1 of 3 words is replaced, and 1 of 1 is missing: 2 of 4; 3 + 4 of 11 + 4 characters."""
    found = word_error_rate(["the  old dog", ""], ["the old cat", "men!"])
    assert found == {"wer": 2 / 4, "cer": 7 / 15}
    assert word_error_rate(["a b c"], ["a"])["wer"] == 2.0


def test_a_moved_phrase_is_one_edit_of_ter():
    found = translation_edit_rate(["on the mat the cat sat"], ["the cat sat on the mat"])
    assert found["ter"] == pytest.approx(100 / 6)
    assert "nrefs:1" in found["ter_signature"]
    assert translation_edit_rate(["a b"], ["a b"])["ter"] == 0


def test_fewer_errors_are_better():
    chosen = [best_by(name) for name in METRICS]
    assert chosen == ["bleu", "bleu_lowercase", "exact_match", "rougeL", "-ter", "-wer"]


def test_exact_match_is_the_share_of_equal_outputs():
    outputs = ["I_JUMP I_WALK", "I_JUMP", " I_RUN  I_RUN", ""]
    references = ["I_JUMP I_WALK", "I_JUMP I_JUMP", "I_RUN I_RUN", ""]
    assert exact_match(outputs, references) == {"exact_match": 0.75}


def longest_common(a, b):
    """Length of the longest common subsequence, by trying all subsequences."""

    def is_in(part):
        rest = iter(b)
        return all(x in rest for x in part)

    sizes = range(len(a), 0, -1)
    return next((n for n in sizes if any(map(is_in, itertools.combinations(a, n)))), 0)


def test_common_subsequence_is_the_longest():
    rng = random.Random(0)
    for _ in range(200):
        a, b = ("".join(rng.choices("abc", k=rng.randint(0, 8))) for _ in range(2))
        assert common_subsequence(a, b) == longest_common(a, b), (a, b)


def test_rouge_of_lins_example():
    """Sentences of Lin 2004."""
    reference = "police killed the gunman"
    first, second = (
        rouge([output], [reference])
        for output in ("police kill the gunman", "the gunman kill police")
    )
    assert first == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4})
    assert second == pytest.approx({"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 2 / 4})


def test_rouge_ignores_case_and_punctuation_and_counts_repeated_words():
    assert rouge(["The CAT."], ["the-cat"])["rougeL"] == 1.0
    assert rouge(["a a a b"], ["a a c"])["rouge1"] == pytest.approx(2 * 2 / 7)
    assert rouge(["Über 猫"], ["über 猫"])["rouge2"] == 1.0


def test_rouge_averages_over_texts():
    found = rouge(["a b", "", "x"], ["a b", "c d e f g", ""])
    assert found == {"rouge1": 1 / 3, "rouge2": 1 / 3, "rougeL": 1 / 3}
