# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: when inputs of a batch are done, the next ones take their places.

R inputs of a group, B places of a batch.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.decoding import Memory, replace_sentences
from transformer_jax.parallel import hosts

GROUPS = 4
"""Groups of a batch. More groups leave fewer places idle, and pause the search more often: greedy
search for 1,000 captions with a model of width 128 took 2.5 CPU seconds with 4 groups of 16 and 2.9
with 8 groups of 8 (without refilling: 3.3)."""

Arrays = Mapping[str, np.ndarray]


def refilled(
    start: Callable[[Arrays], tuple[Memory, Any]],
    run: Callable[[Memory, Any, np.int32], tuple[Any, jax.Array, Any]],
    arrays: Arrays,
    batch_size: int,
) -> Iterator[tuple[list[int], Any]]:
    """Yields finished outputs, with the indices of their inputs.

    Inputs enter in groups of a constant size, in order. When the places of a group are free, the
    next one takes them.

    Args:
      start: compiled; arrays with leading axis R -> memory and search, `RefillableSearch.open`.
      run: compiled; memory, search and number of sentences that may be left -> search, done [B] and
        outputs with leading axis B. It reuses the memory of the search that it is given.
      arrays: at least `batch_size` inputs, the leading axis.
      batch_size: largest B.
    """
    num_inputs = len(next(iter(arrays.values())))
    group = max(1, batch_size // GROUPS)
    num_groups = batch_size // group
    places = np.full(num_groups * group, -1)  # index of the input in each place; -1: free
    waiting = list(range(num_inputs))
    batch: Any = None
    while waiting or (places >= 0).any():
        while waiting and (places < 0).sum() >= min(group, len(waiting)):
            entering = waiting[:group]
            waiting = waiting[group:]
            free = np.flatnonzero(places < 0)[: len(entering)]
            places[free] = entering
            # The last group may be smaller: it is filled up with rows that go to no place.
            fill = (0, group - len(entering))
            rows = np.pad(entering, fill, mode="edge")
            new = start({name: array[rows] for name, array in arrays.items()})
            batch = _repeated(new, num_groups) if batch is None else batch
            batch = _replaced(batch, new, np.pad(free, fill, constant_values=len(places)))
        memory, search = batch
        # The search pauses when the next group has room; with none waiting, when all are done.
        most_left = len(places) - min(group, len(waiting)) if waiting else 0
        search, is_done, outputs = run(memory, search, np.int32(most_left))
        batch = memory, search
        is_done, outputs = hosts.to_host((is_done, outputs))
        done = np.flatnonzero(is_done & (places >= 0))
        yield places[done].tolist(), jax.tree.map(lambda rows, done=done: rows[done], outputs)
        places[done] = -1


@functools.partial(jax.jit, static_argnames="times")
def _repeated(tree: Any, times: int) -> Any:
    return jax.tree.map(lambda rows: jnp.concatenate([rows] * times), tree)


_replaced = jax.jit(replace_sentences, donate_argnums=0)
