"""Batches of few shapes for a trained model: filled up, placed on the devices, run, taken back."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows


@dataclasses.dataclass(frozen=True)
class FilledBatch[Row]:
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
        return taken_back(program(params, self.place(params, rows, batch_size)), len(rows))


def taken_back(found: Any, count: int) -> Any:
    """The first rows of a tree of arrays, as NumPy arrays: what filled up the batch is left out."""
    return jax.tree.map(lambda x: x[:count], hosts.to_host(found))
