# SPDX-License-Identifier: Apache-2.0
"""Lazy sequences of examples."""

import numpy as np
import pytest

from transformer_jax.data.examples import Corpora, LinePairs, Selection


@pytest.fixture
def pairs():
    return LinePairs(["a", "b", "c"], ["x", "y", "z"])


def test_a_selection_has_the_selected_examples_in_order(pairs):
    assert [pair["source"] for pair in Selection(pairs, np.array([2, 0]))] == ["c", "a"]


def test_corpora_are_concatenated(pairs):
    both = Corpora((pairs, LinePairs([], []), LinePairs(["d"], ["w"])))
    assert len(both) == 4 and both.starts == [0, 3, 3, 4]
    assert "".join(pair["source"] for pair in both) == "abcd"
    assert both[-1] == both[3] == {"source": "d", "target": "w"}
    with pytest.raises(IndexError):
        both[4]
