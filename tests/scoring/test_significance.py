# SPDX-License-Identifier: Apache-2.0
"""Paired tests of corpus scores."""

import itertools

import numpy as np
import pytest

from transformer_jax.scoring import METRICS
from transformer_jax.scoring.significance import (
    compare_outputs,
    randomized_significance,
    translation_significance,
)


@pytest.fixture(scope="module")
def texts():
    """References, and outputs of a good and of a worse system."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(15)])
    references = rng.choice(words, (60, 9))
    tables = [references]
    for share in (0.1, 0.4):
        is_kept = rng.random(references.shape) > share
        tables.append(np.where(is_kept, references, rng.choice(words, references.shape)))
    return [[" ".join(row) for row in table] for table in tables]


def test_a_worse_system_is_found(texts):
    references, good, worse = texts
    found = {test.metric: test for test in translation_significance(good, worse, references)}
    assert set(found) == {"bleu", "bleu_lowercase", "chrf", "ter"}
    bleu = found["bleu"]
    for name in ("bleu", "bleu_lowercase"):
        for outputs, score in ((good, found[name].first), (worse, found[name].second)):
            assert METRICS[name](outputs, references)[name] == pytest.approx(score)
    assert all(test.differs and test.p_bootstrap < 0.05 for test in found.values())
    assert bleu.difference < 0 < found["ter"].difference
    low, high = bleu.first_interval
    assert low < bleu.first < high and "ar:1000" in bleu.test


def test_case_alone_makes_no_difference_without_case(texts):
    references, good, _ = texts
    upper = [line.upper() for line in good]
    found = {test.metric: test for test in translation_significance(good, upper, references)}
    assert found["bleu"].differs and not found["bleu_lowercase"].differs


def test_a_few_other_outputs_are_no_proof(texts):
    """Of the 2^d exchanges of d examples, 2 have the observed difference."""
    references, _, worse = texts
    changed = [i for i in range(60) if worse[i] != references[i]][:6]
    for count in (1, 3, 6):
        second = list(worse)
        for i in changed[:count]:
            second[i] = references[i]
        second[-1] = second[-1].upper()  # a change that two of the scores ignore
        found = {test.metric: test for test in translation_significance(worse, second, references)}
        assert found["bleu"].p >= 2.0**-count
        for name in ("bleu_lowercase", "ter"):
            assert found[name].p == pytest.approx(min(1, 2 * 2.0**-count), abs=0.02)


def test_randomization_is_the_exact_permutation_test():
    references = list("aaaaaaaa")
    first, second = list("aabbbabb"), list("aaaaabab")
    score = METRICS["exact_match"]
    (test,) = compare_outputs("exact_match", score, first, second, references)
    (reverse,) = compare_outputs("exact_match", score, second, first, references)
    right = [np.equal(outputs, references).astype(int) for outputs in (first, second)]
    differences = right[1] - right[0]
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    exact = np.mean(abs((signs * differences).sum(1)) >= abs(differences.sum()))
    assert (test.p, reverse.p) == pytest.approx((exact, exact), abs=0.04)
    assert (test.first, test.second) == (3 / 8, 6 / 8)


def test_equal_outputs_are_never_different():
    found = randomized_significance(len, ["a", "b"], ["a", "b"], "length", trials=50)
    assert found.p == 1 and found.difference == 0
