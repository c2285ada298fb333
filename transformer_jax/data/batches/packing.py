"""First-fit packing: several short examples share one row of fixed length.

An example (here: its features, such as the tokens of a translation pair's `source` and `target`)
goes into the first row that has room for all of them, under the same segment id on each, so that
attention keeps it apart from its neighbours and pairs its source with its target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError

Batch = dict[str, np.ndarray]
"""For each feature f of length L the int32 arrays f, f_segment_ids and f_positions, [rows, L]."""


class PackedRows:
    """Rows that are filled with examples by first fit.

    Args:
      lengths: slots of a row for each feature.
      rows: how many rows are filled side by side; more rows leave less padding.
    """

    def __init__(self, lengths: Mapping[str, int], rows: int):
        self._lengths = dict(lengths)
        self._free = [np.full(rows, length) for length in lengths.values()]  # [rows] each
        # Of each example, in the order in which they came: itself, its row, its size by feature.
        self._examples: list[Features] = []
        self._rows: list[int] = []
        self._sizes: list[list[int]] = []

    def __len__(self) -> int:
        """The number of examples packed so far."""
        return len(self._examples)

    def is_overlong(self, example: Features) -> bool:
        """Whether a feature of `example` is longer than a whole row."""
        return any(len(example[feature]) > length for feature, length in self._lengths.items())

    def add(self, example: Features) -> bool:
        """Packs `example` (one int array [n >= 1] a feature); False if no row has room for it.

        Raises:
          ValueError: the example's features are not those of `lengths`, or one has no token.
        """
        sizes = self._sizes_of(example)
        room = self._free[0] >= sizes[0]
        for free, size in zip(self._free[1:], sizes[1:], strict=True):
            room &= free >= size
        row = int(room.argmax())
        if not room[row]:
            return False
        for free, size in zip(self._free, sizes, strict=True):
            free[row] -= size
        self._examples.append(example)
        self._rows.append(row)
        self._sizes.append(sizes)
        return True

    def arrays(self) -> Batch:
        """The rows so far.

        Segment ids count the examples of a row from 1 (0 is padding); positions restart at 0 in
        each segment.
        """
        order = np.argsort(self._rows, kind="stable")  # row by row, in each as they came
        rows, sizes = np.array(self._rows)[order], np.array(self._sizes)[order]
        first = np.searchsorted(rows, rows)  # of the examples in the same row, [N]
        segments = 1 + np.arange(len(rows)) - first
        packed = {}
        for i, (feature, length) in enumerate(self._lengths.items()):
            size = sizes[:, i]
            behind = np.cumsum(size) - size  # so many tokens stand in front of each example
            positions = np.arange(size.sum()) - np.repeat(behind, size)
            slots = np.repeat(rows * length + behind - behind[first], size) + positions
            tokens = np.concatenate([self._examples[j][feature] for j in order])
            packed[feature] = self._place(tokens, slots, length)
            packed[f"{feature}_segment_ids"] = self._place(np.repeat(segments, size), slots, length)
            packed[f"{feature}_positions"] = self._place(positions, slots, length)
        return packed

    def _place(self, values: np.ndarray, slots: np.ndarray, length: int) -> np.ndarray:
        flat = np.zeros(len(self._free[0]) * length, np.int32)
        flat[slots] = values
        return flat.reshape(-1, length)

    def _sizes_of(self, example: Features) -> list[int]:
        if example.keys() != self._lengths.keys():
            raise ValueError(f"got features {sorted(example)}, expected {sorted(self._lengths)}")
        sizes = [len(example[feature]) for feature in self._lengths]
        if not all(sizes):
            # A target without a source would attend to nothing, silently.
            raise ValueError("an example's feature has no token; end each in one such as EOS")
        return sizes


@dataclass(frozen=True)
class PackedGroup:
    """Rows packed together, and how far in the examples they reach.

    Attributes:
      arrays: the rows, as `PackedRows.arrays` gives them.
      end: place of the first example behind those looked at.
      overlong: how many of those were left out because a feature was longer than its row.
    """

    arrays: Batch
    end: int
    overlong: int


class Examples(Protocol):
    """Examples at places, which need not follow each other without gaps."""

    def __len__(self) -> int:
        """Above all places."""

    def __getitem__(self, place: int, /) -> Features:
        """The example at a place."""

    def after(self, place: int) -> int:
        """The place of the example behind that one."""


@dataclass(frozen=True)
class Packer:
    """Packs examples into groups of rows.

    Attributes:
      epoch: each different example once.
      lengths: slots of a row for each feature.
      rows: of a group.
    """

    epoch: Sequence[Features]
    lengths: Mapping[str, int]
    rows: int

    @property
    def num_bytes(self) -> int:
        """Of a group's arrays, at most, each on a place that is a multiple of 64."""
        return sum(3 * (4 * self.rows * length + 64) for length in self.lengths.values())

    def pack(self, examples: Examples, start: int) -> PackedGroup:
        """Packs the examples from place `start` on until one finds no room, or they end.

        Raises:
          UserError: all examples of the epoch are overlong.
        """
        packed, overlong, place = PackedRows(self.lengths, self.rows), 0, start
        count = len(examples)
        while place < count:
            example = examples[place]
            if not packed.add(example):
                if not packed.is_overlong(example):
                    break
                overlong += 1
                # Examples may be an endless sequence: stop where none of them will ever fit.
                if overlong == len(self.epoch) and not packed:
                    self._require_one_that_fits(packed)
            place = examples.after(place)
        return PackedGroup(packed.arrays(), place, overlong)

    def _require_one_that_fits(self, packed: PackedRows) -> None:
        if all(map(packed.is_overlong, self.epoch)):
            limits = ", ".join(f"{feature} {length}" for feature, length in self.lengths.items())
            raise UserError(
                f"each of the {len(self.epoch)} examples is longer than a row (in tokens: "
                f"{limits}); raise the maximum lengths in the data section"
            )


# FOLDED data.batches.padding: Rows of unequal length as arrays of few shapes: one example a row,
# filled up with padding.


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
