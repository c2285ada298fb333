# SPDX-License-Identifier: Apache-2.0
"""Two texts as tokens, positions and segment ids: one in each row, both packed into one row, and
these three rows in one batch."""

import numpy as np

PADDED = (
    np.array([[3, 4, 5, 6, 9], [7, 8, 10, 0, 0]]),
    np.tile(np.arange(5), (2, 1)),
    np.array([[1] * 5, [1, 1, 1, 0, 0]]),
)
PACKED = (
    np.array([[3, 4, 5, 6, 9, 7, 8, 10, 0]]),
    np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
    np.array([[1] * 5 + [2] * 3 + [0]]),
)
TOGETHER = tuple(
    np.concatenate([packed, np.pad(padded, ((0, 0), (0, 4)))])
    for packed, padded in zip(PACKED, PADDED, strict=True)
)
