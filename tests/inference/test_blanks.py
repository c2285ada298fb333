"""Blanks in text: where they stand, and what a line looks like with them filled."""

import pytest

from transformer_jax.inference.blanks import blank_arrays, fill_blanks


def test_blanks_are_where_the_mask_stands():
    batch = blank_arrays([[0, 9, 5, 9], [9, 9, 9], [7]], mask=9)
    assert batch["places"].tolist() == [[1, 3, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]]
    assert batch["text_segment_ids"].sum(axis=1).tolist() == [4, 3, 1]


@pytest.mark.parametrize(
    "line, words, filled",
    [
        ("a _ b _", ["dog", "cat"], "a dog b cat"),
        ("a _ b _", [" dog"], "a dog b _"),
        ("_ a_, b", [" the", " dog"], "the a dog, b"),
        ("un_", ["able"], "unable"),
    ],
)
def test_words_take_the_place_of_blanks(line, words, filled):
    assert fill_blanks(line, "_", words) == filled
