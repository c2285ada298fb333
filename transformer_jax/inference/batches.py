# SPDX-License-Identifier: Apache-2.0
"""Padded batches for inference: few shapes, so that programs compile once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runtime.progress import track


@dataclasses.dataclass(frozen=True)
class PaddedBatch[Row]:
    """Makes batches with a constant number of rows.

    Attributes:
      filler: row that pads a batch.
      to_arrays: rows -> arrays of a batch, each with the leading axis of rows.
    """

    filler: Row
    to_arrays: Callable[[Sequence[Row]], Mapping[str, np.ndarray]]

    def place(self, params: Any, rows: Sequence[Row], batch_size: int) -> Mapping[str, Any]:
        """Arrays of a batch on the devices of `params`, padded to `batch_size` rows or the next
        number that is divisible by the number of devices."""
        fill = round_up_rows(batch_size, params) - len(rows)
        return place_like(params, self.to_arrays([*rows, *[self.filler] * fill]))

    def run(
        self,
        program: Callable[[Any, Mapping[str, Any]], Any],
        params: Any,
        rows: Sequence[Row],
        batch_size: int,
    ) -> Any:
        """Runs a compiled program on the rows.

        Args:
          program: (params, arrays) -> tree of arrays, each with the leading axis of rows.
          rows: at most `batch_size` rows.
          batch_size: number of rows to pad to.

        Returns:
          The program's result as NumPy arrays, without padding rows.
        """
        return unpad(program(params, self.place(params, rows, batch_size)), len(rows))


def unpad(found: Any, count: int) -> Any:
    """Removes padding rows from a tree of arrays and copies it to the host."""
    return jax.tree.map(lambda x: x[:count], hosts.to_host(found))


_TEXTS = PaddedBatch({"text": [0]}, padded_batch)


def label_rows(
    probabilities: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    rows: Sequence[list[int]],
    batch_size: int,
) -> list[np.ndarray]:
    """Runs a compiled program on texts, in batches of similar length.

    Args:
      probabilities: compiled (params, batch with the feature "text", one text per row) ->
        [B, ...].
      rows: tokens of each text.
      batch_size: texts of a batch.

    Returns:
      The program's result for each text, in order.
    """
    results: dict[int, np.ndarray] = {}
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for indices in track(batched(order, batch_size), len(order), "example"):
        texts = [{"text": rows[i]} for i in indices]
        of_batch = _TEXTS.run(probabilities, params, texts, batch_size)
        results |= zip(indices, of_batch, strict=True)
    return [results[i] for i in range(len(rows))]
