"""Rows of unequal length as arrays of few shapes: one example a row, filled up with padding."""

from collections.abc import Mapping, Sequence

import numpy as np

type Tokens = Sequence[int] | np.ndarray

LENGTH_STEP = 16  # rows grow by this many tokens, so that programs are compiled for few shapes


def rounded_length(rows: Sequence[Tokens]) -> int:
    """The length of the longest row, rounded up to a multiple of LENGTH_STEP."""
    return -(-max(map(len, rows)) // LENGTH_STEP) * LENGTH_STEP


def pad_rows(rows: Sequence[Tokens], length: int) -> np.ndarray:
    """Rows of tokens, none longer than `length`, as int32 [B, length], filled up with 0, which may
    be a token too."""
    padded = np.zeros((len(rows), length), np.int32)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def row_lengths(rows: Sequence[Tokens]) -> np.ndarray:
    """Tokens of each row, int32 [B]."""
    return np.array([len(row) for row in rows], np.int32)


def padded_batch(
    examples: Sequence[Mapping[str, Tokens]], lengths: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """One example a row, with the arrays of a packed batch.

    Args:
      examples: tokens without padding for each feature.
      lengths: of the rows of each feature; None: the rounded length of the longest.

    Returns:
      for each feature f the int32 arrays f, f_segment_ids and f_positions, [B, length].
    """
    batch = {}
    for feature in examples[0]:
        rows = [example[feature] for example in examples]
        length = lengths[feature] if lengths else rounded_length(rows)
        positions = np.tile(np.arange(length, dtype=np.int32), (len(rows), 1))
        batch[feature] = pad_rows(rows, length)
        batch[f"{feature}_segment_ids"] = (positions < row_lengths(rows)[:, None]).astype(np.int32)
        batch[f"{feature}_positions"] = positions
    return batch
