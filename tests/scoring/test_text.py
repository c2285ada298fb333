# SPDX-License-Identifier: Apache-2.0
"""Metrics of text against exhaustive searches, sacreBLEU's cases, and values computed by hand."""

import functools
import itertools
import math
import random

import pytest
import sacrebleu

from transformer_jax.scoring import METRICS, best_by, text

MAT = "the cat sat on the mat"


@pytest.mark.parametrize(
    ("outputs", "references", "scores"),
    [
        ([MAT, "a b c d"], [MAT, "a b c d"], {"bleu": 100, "bleu_lowercase": 100, "chrf": 100}),
        (["x y z w"], ["a b c d"], {"bleu": 0, "chrf": 0}),
        # All n-grams of 5 words are right, but 6 are expected: the penalty is exp(1 - 6/5).
        ([MAT[:-4]], [MAT], {"bleu": 100 * math.exp(-0.2)}),
        # The last of 6 + 5 words is wrong; n-grams are counted over both sentences.
        (
            [MAT, "we see the old dog"],
            [MAT, "we see the old cat"],
            {"bleu": 100 * (10 / 11 * 8 / 9 * 6 / 7 * 4 / 5) ** (1 / 4)},
        ),
        # 2/3, 1/2 and 0 of the n-grams of "abc" are in "abd", and the same backwards: F2.
        (["abc"], ["abd"], {"chrf": 100 * 7 / 18}),
        (["The Cat Sat On The Mat"], [MAT], {"bleu": 0, "bleu_lowercase": 100}),
        # 13a: the full stop of detokenized text is a token of its own, not part of "mat.".
        ([MAT + "."], [MAT + " ."], {"bleu": 100}),
        # An empty translation counts: the penalty is exp(1 - 8/6).
        ([MAT, ""], [MAT, "a dog"], {"bleu": 100 * math.exp(-1 / 3)}),
    ],
)
def test_scores_of_translations(outputs, references, scores):
    found = text.score_translations(outputs, references)
    assert {name: found[name] for name in scores} == pytest.approx(scores)
    assert found.keys() == {"bleu", "bleu_lowercase", "chrf", "signature"}
    signature = f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert found["signature"] == signature


@functools.cache
def fewest(a, b):
    """Edit distance by trying all edits."""
    if not a or not b:
        return len(a) + len(b)
    replaced = fewest(a[1:], b[1:]) + (a[0] != b[0])
    return min(replaced, fewest(a[1:], b) + 1, fewest(a, b[1:]) + 1)


def longest_common(a, b):
    """Length of the longest common subsequence, by trying all subsequences."""

    def is_in(part):
        rest = iter(b)
        return all(x in rest for x in part)

    sizes = range(len(a), 0, -1)
    return next((n for n in sizes if any(map(is_in, itertools.combinations(a, n)))), 0)


@pytest.mark.parametrize(
    ("fast", "exhaustive"), [(text.edits, fewest), (text.common_subsequence, longest_common)]
)
def test_edits_are_the_fewest_and_the_common_subsequence_the_longest(fast, exhaustive):
    rng = random.Random(0)
    for _ in range(300):
        a, b = ("".join(rng.choices("abc", k=rng.randint(0, 7))) for _ in range(2))
        assert fast(a, b) == exhaustive(a, b), (a, b)


def test_error_rates_are_over_all_words():
    """1 of 3 words is replaced, and 1 of 1 is missing: 2 of 4; 3 + 4 of 11 + 4 characters."""
    found = text.word_error_rate(["the  old dog", ""], ["the old cat", "men!"])
    assert found == {"wer": 2 / 4, "cer": 7 / 15}
    assert text.word_error_rate(["a b c"], ["a"])["wer"] == 2.0


def test_a_moved_phrase_is_one_edit_of_ter():
    found = text.translation_edit_rate(["on the mat the cat sat"], ["the cat sat on the mat"])
    assert found["ter"] == pytest.approx(100 / 6)
    assert "nrefs:1" in found["ter_signature"]
    assert text.translation_edit_rate(["a b"], ["a b"])["ter"] == 0


def test_fewer_errors_are_better():
    chosen = [best_by(name) for name in METRICS]
    assert chosen == ["bleu", "bleu_lowercase", "exact_match", "rougeL", "-ter", "-wer"]


def test_exact_match_is_the_share_of_equal_outputs():
    outputs = ["I_JUMP I_WALK", "I_JUMP", " I_RUN  I_RUN", ""]
    references = ["I_JUMP I_WALK", "I_JUMP I_JUMP", "I_RUN I_RUN", ""]
    assert text.exact_match(outputs, references) == {"exact_match": 0.75}


@pytest.mark.parametrize(
    ("outputs", "references", "scores"),
    [
        # Sentences of Lin 2004.
        (["police kill the gunman"], ["police killed the gunman"], (3 / 4, 1 / 3, 3 / 4)),
        (["the gunman kill police"], ["police killed the gunman"], (3 / 4, 1 / 3, 2 / 4)),
        # Neither case nor punctuation counts, and repeated words count as often as in both.
        (["The CAT."], ["the-cat"], (1, 1, 1)),
        (["a a a b"], ["a a c"], (4 / 7, 2 / 5, 4 / 7)),
        (["Über 猫"], ["über 猫"], (1, 1, 1)),
        # Vowels of Hindi, and an accent that is a character of its own, are parts of words.
        (["मेरी किताब", "cafe\u0301"], ["मेरी कहा", "cafe"], (1 / 4, 0, 1 / 4)),
        (["a b", "", "x"], ["a b", "c d e f g", ""], (1 / 3, 1 / 3, 1 / 3)),  # averages
    ],
)
def test_rouge(outputs, references, scores):
    assert tuple(text.rouge(outputs, references).values()) == pytest.approx(scores)
