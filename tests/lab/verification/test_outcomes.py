# SPDX-License-Identifier: Apache-2.0
"""Comparisons and verdicts."""

import json
from unittest.mock import Mock

import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.verification.outcomes import (
    BITS,
    Comparison,
    DoesNotApplyError,
    Outcome,
    Verification,
    run_oracle,
)


def test_trees_differ_relative_to_the_largest_element_of_an_array():
    tree = {"a": np.array([1.0, -2.0]), "b": {"c": np.array([100.0])}}
    found = Comparison.of_trees({"a": np.array([1.1, -2.0]), "b": {"c": np.array([101.0])}}, tree)
    assert not found.is_equal and found.where == "most in a"
    assert found.absolute == pytest.approx(0.1) and found.relative == pytest.approx(0.05)
    # An array that is zero but for rounding is not compared by itself.
    tree = {"a": np.array([1e-9]), "b": np.array([1.0])}
    assert Comparison.of_trees({"a": np.array([2e-9]), "b": np.array([1.0])}, tree).is_equal


def test_what_is_not_finite_or_has_another_shape_is_never_equal():
    for value in (np.nan, np.inf):
        x = np.array([value])
        assert not Comparison.of_trees({"a": x}, {"a": x}).is_equal
        assert not Comparison.of_places(x, x, str).is_equal
    assert not Comparison.of_trees({"a": np.ones(2)}, {"a": np.ones(3)}).is_equal
    assert not Comparison.of_places(np.ones((2, 1)), np.ones((3, 1)), str).is_equal


def test_places_name_the_first_that_differs():
    expected = np.zeros((4, 3)) + 1
    found = Comparison.of_places(expected + [[0], [1e-6], [0.5], [2]], expected, "token {}".format)
    assert found.where == "first at token 2" and found.absolute == 2
    assert not Comparison.of_places(expected + 1e-9, expected, str, BITS).is_equal


def test_an_error_is_an_outcome():
    for error, verdict, reason in (
        (DoesNotApplyError("no decoder"), "does not apply", "no decoder"),
        (UserError("config.model: no"), "does not apply", "config.model: no"),
        (TypeError("bad operand"), "not run", "TypeError: bad operand"),
    ):
        assert run_oracle("x", Mock(side_effect=error)) == Outcome("x", verdict, reason)


def test_a_table_counts_its_verdicts_and_what_was_not_run_is_no_proof():
    same = run_oracle("one = two", lambda: Comparison(0.0, 0.0, "", BITS))
    other = run_oracle("a = b", lambda: Comparison(0.5, 0.25, "first at token 3", 1e-4))
    left = Outcome("c", "not run", "the time limit")
    assert Verification("mine", [same, Outcome("d", "does not apply")]).is_proven
    assert not Verification("mine", [same, left]).is_proven
    found = Verification("mine", [same, other, left])
    assert found.table().splitlines() == [
        "one = two  equal    bit for bit",
        "a = b      differs  by 5.00e-01, relative 2.50e-01 (tolerance 0.0001), first at token 3",
        "c          not run  the time limit",
        "mine: 1 equal, 1 differs, 1 not run",
    ]
    assert json.loads(json.dumps(found.as_dict()))["outcomes"][1]["relative"] == 0.25
