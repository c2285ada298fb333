"""Batches of few shapes for a trained model: filled up, placed on the devices, run, taken back."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import batched
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
        found = hosts.to_host(program(params, self.place(params, rows, batch_size)))
        return jax.tree.map(lambda x: x[: len(rows)], found)


def in_batches[Item, Result](
    items: Sequence[Item],
    batch_size: int,
    run: Callable[[Sequence[Item]], Iterable[Result]],
    length: Callable[[Item], Any] | None = None,
) -> list[Result]:
    """The result of each item, in the order of the items.

    Args:
      items: of any number.
      batch_size: the most items at once.
      run: the results of a batch of items, in their order.
      length: sorts the items, so that those of like length share a batch; None: they are batched
        as they come.
    """
    order = list(range(len(items)))
    if length is not None:
        order.sort(key=lambda i: length(items[i]))
    results: dict[int, Result] = {}
    for chosen in batched(order, batch_size):
        results |= zip(chosen, run([items[i] for i in chosen]), strict=True)
    return [results[i] for i in range(len(items))]
