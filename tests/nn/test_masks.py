# SPDX-License-Identifier: Apache-2.0
"""Masks equal literal matrices."""

import numpy as np

from transformer_jax.nn.masks import look_ahead_mask, padding_mask, segment_mask, window_mask


def test_padding_is_never_seen():
    mask = padding_mask(np.array([[1, 1, 0], [1, 2, 2]]))
    assert mask.shape == (2, 1, 1, 3)
    np.testing.assert_array_equal(mask[:, 0, 0], [[True, True, False], [True, True, True]])


def test_a_query_sees_its_own_sentence_of_a_packed_row():
    mask = segment_mask(np.array([[1, 2, 2, 0]]), np.array([[1, 1, 2, 3, 0]]))
    assert mask.shape == (1, 1, 4, 5)
    np.testing.assert_array_equal(
        mask[0, 0].astype(int),
        [
            [1, 1, 0, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 0, 0],  # padding sees nothing, not even padding
        ],
    )


def test_masks_combine():
    segment_ids = np.array([[1, 1, 2, 0]])
    mask = look_ahead_mask(4) & segment_mask(segment_ids, segment_ids)
    np.testing.assert_array_equal(
        mask[0, 0].astype(int), [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    )


def test_a_window_counts_positions_not_slots():
    distance = np.arange(6)[None, None] - np.array([[4, 0, 9]])[:, :, None]
    mask = window_mask(distance, size=2)
    assert mask.shape == (1, 1, 3, 6)
    np.testing.assert_array_equal(
        mask[0, 0].astype(int), [[0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    )
