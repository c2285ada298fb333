# SPDX-License-Identifier: Apache-2.0
"""PARSEVAL scores against numbers counted by hand."""

import pytest

from transformer_jax.scoring import PARSEVAL
from transformer_jax.scoring.parseval import parseval

GOLD = "(TOP (S (NP (DT The) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (NNS mats)))) (. .)))"
"""5 constituents over 5 words: S 0-5, NP 0-2, VP 2-5, PP 3-5, NP 4-5."""


def of(output, reference=GOLD):
    return parseval([output], [reference])


def test_the_right_tree_scores_1():
    assert of(GOLD) == dict.fromkeys(PARSEVAL, 1.0)


def test_labels_and_spans_must_both_be_right():
    flat = "(TOP (S (NP (DT The) (NN cat)) (VP (VBD sat) (IN on) (NP (NN mats))) (. .)))"
    # S, NP, VP, NP of 5; NNS is tagged NN.
    scores = {"f1": 8 / 9, "precision": 1, "recall": 4 / 5, "exact_match": 0, "tag_accuracy": 4 / 5}
    assert of(flat) == pytest.approx(scores)
    other = of(GOLD.replace("(PP", "(ADVP"))
    assert other["f1"] == other["precision"] == other["recall"] == 4 / 5


def test_equal_constituents_count_as_often_as_they_occur():
    twice, once = "(TOP (NP (NP (NN a) (NN b))))", "(TOP (NP (NN a) (NN b)))"
    scores = {"f1": 2 / 3, "precision": 1 / 2, "recall": 1, "exact_match": 0, "tag_accuracy": 1}
    assert of(twice, once) == pytest.approx(scores)
    assert of(once, twice)["recall"] == 1 / 2
    assert of(twice, twice)["f1"] == 1


def test_roots_do_not_count():
    for root in ("", "ROOT", "S1"):
        assert of(GOLD.replace("TOP", root))["exact_match"] == 1
    assert of("(TOP (X (NN a)))", "(TOP (NN a))")["precision"] == 0
    assert of("(TOP (NN a))", "(TOP (NN a))")["f1"] == 0  # nothing to find


def test_punctuation_and_traces_are_removed_from_both():
    gold = "(TOP (S (`` ``) (NP (NN a) (, ,)) (VP (VB b)) (: ;) ('' '') (. .)))"
    output = "(TOP (S (`` ``) (NP (NN a)) (NP (, ,)) (VP (VB b) (: ;)) ('' '') (NN .)))"
    assert of(output, gold)["exact_match"] == of(output, gold)["tag_accuracy"] == 1
    traced = "(TOP (S (NP (-NONE- *)) (VP (VB a))))"
    assert of(traced.replace("NP", "X"), traced)["exact_match"] == 1


def test_the_reference_decides_what_is_punctuation_and_some_labels_are_equal():
    gold, output = "(TOP (NP (NN a) (. b)))", "(TOP (NP (. a)) (NN b))"
    assert of(output, gold) == dict.fromkeys(PARSEVAL, 1) | {"tag_accuracy": 0}
    # PRT equals ADVP.
    assert of("(TOP (VP (VB a) (ADVP (RP b))))", "(TOP (VP (VB a) (PRT (RP b))))")["f1"] == 1


def test_labels_end_at_function_tags_and_indices_as_in_evalb():
    """EVALB's README, section 7: NP-SBJ is processed to give NP, NP=2 is changed to NP."""
    plain = "(TOP (S (NP (NN a)) (VP (VB b) (PRT (RP c)))))"
    marked = "(TOP-1 (S=2 (NP-SBJ-3 (NN a)) (VP=1-X (VB b) (ADVP-DIR (RP c)))))"
    assert of(marked, plain) == of(plain, marked) == dict.fromkeys(PARSEVAL, 1.0)
    tagged = plain.replace("NN", "NN-X")  # EVALB compares tags as they are
    assert of(tagged, plain)["f1"] == 1 and of(tagged, plain)["tag_accuracy"] == 2 / 3
    bracket, other = "(TOP (-LRB- (NN a)))", "(TOP (-RRB- (NN a)))"
    assert of(bracket, bracket)["f1"] == 1 and of(bracket, other)["f1"] == 0


def test_scores_are_over_all_trees():
    found = parseval([GOLD, "(TOP (NP (NN a)))"], [GOLD, "(TOP (VP (VB a)))"])
    assert found["f1"] == pytest.approx(5 / 6) and found["exact_match"] == 1 / 2
    assert found["tag_accuracy"] == 5 / 6
