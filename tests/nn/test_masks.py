# SPDX-License-Identifier: Apache-2.0
"""Masks equal literal matrices."""

import numpy as np

from transformer_jax.nn.masks import look_ahead_mask, padding_mask, segment_mask, window_mask


def rows(mask):
    """The rows of a mask as texts of 0 and 1."""
    return " ".join("".join(str(int(sees)) for sees in row) for row in mask)


def test_padding_is_never_seen():
    mask = padding_mask(np.array([[1, 1, 0], [1, 2, 2]]))
    assert mask.shape == (2, 1, 1, 3) and rows(mask[:, 0, 0]) == "110 111"


def test_a_query_sees_its_own_sentence_of_a_packed_row():
    """Padding sees nothing, not even padding."""
    mask = segment_mask(np.array([[1, 2, 2, 0]]), np.array([[1, 1, 2, 3, 0]]))
    assert mask.shape == (1, 1, 4, 5) and rows(mask[0, 0]) == "11000 00100 00100 00000"


def test_masks_combine():
    segment_ids = np.array([[1, 1, 2, 0]])
    mask = look_ahead_mask(4) & segment_mask(segment_ids, segment_ids)
    assert rows(mask[0, 0]) == "1000 1100 0010 0000"


def test_a_window_counts_positions_not_slots():
    distance = np.arange(6)[None, None] - np.array([[4, 0, 9]])[:, :, None]
    mask = window_mask(distance, size=2)
    assert mask.shape == (1, 1, 3, 6) and rows(mask[0, 0]) == "000111 110000 000000"
