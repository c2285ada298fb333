# SPDX-License-Identifier: Apache-2.0
"""Rows of batches: packing of several examples into a row, and padding of one example per row.

First-fit packing puts an example into the first row with room for all of its features (such as the
tokens of `source` and `target`), and gives them the same segment id. The ids keep attention within
an example, and pair its source with its target.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.data.batches.order import OrderedFeatures
from transformer_jax.errors import UserError

Batch = dict[str, np.ndarray]
"""Int32 arrays f, f_segment_ids and f_positions, [rows, length], for each feature f."""

type Tokens = Sequence[int] | np.ndarray

LENGTH_STEP = 16
"""Padded rows have a multiple of this length, so that few shapes are compiled."""


class FirstFit:
    """Places examples into rows: each into the first one with room for all of its features.

    A set of rows is an integer with a bit for each: the first row with room is then found in half
    the time that comparing arrays of 128 rows takes.

    Args:
      lengths: length of a row for each feature.
      rows: number of rows filled at the same time; more rows leave less padding.
    """

    def __init__(self, lengths: Mapping[str, int], rows: int):
        self._open = (1 << rows) - 1  # rows in which no feature is full
        self._free = [[length] * rows for length in lengths.values()]
        # By feature and size: the open rows with room for that many tokens.
        self._room = [[self._open] * (length + 1) for length in lengths.values()]

    def place(self, sizes: Sequence[int]) -> int | None:
        """Row of an example with these sizes by feature, at least 1; None if no row has room."""
        fitting = self._open
        for room, size in zip(self._room, sizes, strict=True):
            if size >= len(room):
                return None
            fitting &= room[size]
        if not fitting:
            return None
        bit = fitting & -fitting  # the lowest one
        row = bit.bit_length() - 1
        for free, room, size in zip(self._free, self._room, sizes, strict=True):
            before = free[row]
            after = before - size
            if not after:
                self._open ^= bit
                break  # what is free in other features no longer matters
            free[row] = after
            lost = slice(after + 1, before + 1)
            room[lost] = [open_rows ^ bit for open_rows in room[lost]]
        return row


def fill_rows(
    lengths: Mapping[str, int],
    num_rows: int,
    rows: Sequence[int],
    sizes: np.ndarray,
    tokens_of: Callable[[str, np.ndarray], np.ndarray],
) -> Batch:
    """Arrays of packed rows.

    Segment ids number the examples of a row from 1 (0 is padding); positions restart at 0 in each
    segment.

    Args:
      lengths: length of a row for each feature.
      rows: row of each example.
      sizes: int [N, F], tokens of each example by feature.
      tokens_of: (feature, order of examples) -> their tokens, one after another.
    """
    order = np.argsort(rows, kind="stable")  # by row, then in the order of placing
    row = np.array(rows)[order]
    first = np.searchsorted(row, row)  # index of the first example of the same row, [N]
    segments = 1 + np.arange(len(row)) - first
    packed = {}
    for i, (feature, length) in enumerate(lengths.items()):
        size = sizes[order, i]
        offset = np.cumsum(size) - size  # number of tokens before each example
        positions = np.arange(size.sum()) - np.repeat(offset, size)
        slots = np.repeat(row * length + offset - offset[first], size) + positions
        values = {
            feature: tokens_of(feature, order),
            f"{feature}_segment_ids": np.repeat(segments, size),
            f"{feature}_positions": positions,
        }
        for name, flat in values.items():
            array = np.zeros(num_rows * length, np.int32)
            array[slots] = flat
            packed[name] = array.reshape(-1, length)
    return packed


@dataclass(frozen=True)
class PackedGroup:
    """Rows that were packed together.

    Attributes:
      arrays: arrays of the rows (`fill_rows`).
      end: index of the first example that was not read.
      overlong: number of examples left out because a feature is longer than a row.
    """

    arrays: Batch
    end: int
    overlong: int


@dataclass(frozen=True)
class Packer:
    """Packs a sequence of examples, which may be endless, into groups of rows.

    Attributes:
      examples: the sequence.
      lengths: length of a row for each feature.
      rows: rows of a group.
    """

    examples: OrderedFeatures[Any]
    lengths: Mapping[str, int]
    rows: int

    @property
    def num_bytes(self) -> int:
        """Upper bound of the size of a group's arrays, each aligned to 64 bytes."""
        return sum(3 * (4 * self.rows * length + 64) for length in self.lengths.values())

    def pack(self, start: int) -> PackedGroup:
        """Packs examples from index `start` on until one does not fit or the sequence ends.

        Raises:
          UserError: all examples of an epoch are overlong.
          ValueError: the features are not those of `lengths`, or one has no token.
        """
        fit = FirstFit(self.lengths, self.rows)
        rows: list[int] = []
        # Of each packed example.
        packed: list[Any] = []
        packed_sizes: list[list[int]] = []
        overlong = 0
        end = start
        for example, sizes, next_index in self.examples.sized(start, [*self.lengths]):
            if 0 in sizes:
                # A target without a source would silently attend to nothing.
                raise ValueError("an example's feature has no token; end each in one such as EOS")
            row = fit.place(sizes)
            if row is not None:
                rows.append(row)
                packed.append(example)
                packed_sizes.append(sizes)
            elif not self._is_overlong(sizes):
                break
            else:
                overlong += 1
                # The sequence may be endless: stop if no example will ever fit.
                if overlong == len(self.examples.source) and not packed:
                    self._require_one_that_fits()
            end = next_index

        def tokens_of(feature: str, order: np.ndarray) -> np.ndarray:
            return self.examples.tokens(feature, [packed[i] for i in order.tolist()])

        arrays = fill_rows(self.lengths, self.rows, rows, np.array(packed_sizes), tokens_of)
        return PackedGroup(arrays, end, overlong)

    def _is_overlong(self, sizes: Sequence[int]) -> bool:
        """Returns True if a feature is longer than a row."""
        limits = self.lengths.values()
        return any(size > limit for size, limit in zip(sizes, limits, strict=True))

    def _require_one_that_fits(self) -> None:
        epoch = self.examples.epoch()
        if all(self._is_overlong(sizes) for _, sizes, _ in epoch.sized(0, [*self.lengths])):
            limits = ", ".join(f"{feature} {length}" for feature, length in self.lengths.items())
            raise UserError(
                f"each of the {len(epoch)} examples is longer than a row (in tokens: "
                f"{limits}); raise the maximum lengths in the data section"
            )


StreamGroups = Mapping[str, PackedGroup]
"""One group of each stream, by the stream's number."""


def pack_streams(
    streams: Mapping[str, Packer], starts: Mapping[str, int]
) -> Generator[StreamGroups]:
    """Packs group after group of each stream, without end.

    Args:
      streams: the streams by number.
      starts: index of the first example of each stream.
    """
    while True:
        groups = {i: stream.pack(starts[i]) for i, stream in streams.items()}
        starts = {i: group.end for i, group in groups.items()}
        yield groups


def rounded_length(rows: Sequence[Tokens]) -> int:
    """Length of the longest row, rounded up to a multiple of LENGTH_STEP."""
    return -(-max(map(len, rows)) // LENGTH_STEP) * LENGTH_STEP


def pad_rows(rows: Sequence[Tokens], length: int) -> np.ndarray:
    """Pads rows, none longer than `length`, with 0 (also a token id): int32 [B, length]."""
    padded = np.zeros((len(rows), length), np.int32)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def row_lengths(rows: Sequence[Tokens]) -> np.ndarray:
    """Number of tokens of each row, int32 [B]."""
    return np.array([len(row) for row in rows], np.int32)


def padded_batch(
    examples: Sequence[Mapping[str, Tokens]], lengths: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Batch with one example per row, and the arrays of a packed batch.

    Args:
      examples: tokens of each feature, without padding.
      lengths: length of a row for each feature; None: that of the longest, rounded.

    Returns:
      For each feature f the int32 arrays f, f_segment_ids and f_positions, [B, length].
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
