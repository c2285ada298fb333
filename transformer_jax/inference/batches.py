"""Batches of few shapes for a trained model: filled up, placed on the devices, run, taken back."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows


@dataclasses.dataclass(frozen=True)
class PaddedBatch[Row]:
    """How rows become a batch whose number of rows is always the same.

    Attributes:
      filler: the row that fills up a batch.
      to_arrays: the arrays of a batch, each led by its rows.
    """

    filler: Row
    to_arrays: Callable[[Sequence[Row]], Mapping[str, np.ndarray]]

    def place(self, params: Any, rows: Sequence[Row], batch_size: int) -> Mapping[str, Any]:
        """The arrays on the devices that hold `params`, filled up to `batch_size` rows or the next
        number of rows that divides among these devices."""
        fill = round_up_rows(batch_size, params) - len(rows)
        return place_like(params, self.to_arrays([*rows, *[self.filler] * fill]))

    def run(
        self,
        program: Callable[[Any, Mapping[str, Any]], Any],
        params: Any,
        rows: Sequence[Row],
        batch_size: int,
    ) -> Any:
        """What a compiled program makes of the rows.

        Args:
          program: (params, arrays) -> a tree of arrays, each led by the batch's rows.
          params: of the model.
          rows: at most `batch_size`.
          batch_size: rows to fill up to.

        Returns:
          The program's tree as NumPy arrays, led by the rows given.
        """
        return unpad(program(params, self.place(params, rows, batch_size)), len(rows))


def unpad(found: Any, count: int) -> Any:
    """The first rows of a tree of arrays, as NumPy arrays: what filled up the batch is left out."""
    return jax.tree.map(lambda x: x[:count], hosts.to_host(found))


# FOLDED inference.labeling: What the tasks that label text share: a program run on one text a row.


_TEXTS = PaddedBatch({"text": [0]}, padded_batch)


def label_rows(
    probabilities: Callable[[Any, Mapping[str, jax.Array]], jax.Array],
    params: Any,
    rows: Sequence[list[int]],
    batch_size: int,
) -> list[np.ndarray]:
    """What a compiled program makes of each row of tokens, a text alone, in order.

    Args:
      probabilities: (params, the feature "text" as a batch [B, T]) -> [B, ...].
      params: of the model, on the devices that share the rows.
      rows: tokens.
      batch_size: rows at once; texts of like length go together.
    """
    results: dict[int, np.ndarray] = {}
    for chosen in batched(sorted(range(len(rows)), key=lambda i: len(rows[i])), batch_size):
        texts = [{"text": rows[i]} for i in chosen]
        found = _TEXTS.run(probabilities, params, texts, batch_size)
        results |= zip(chosen, found, strict=True)
    return [results[i] for i in range(len(rows))]
