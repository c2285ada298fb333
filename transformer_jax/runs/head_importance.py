"""How much each head of a run matters for the loss of a split."""

from collections.abc import Iterator
from itertools import batched
from typing import Any

import jax
import numpy as np

from transformer_jax.analysis.importance import Importance, by_gradient, by_switching_off
from transformer_jax.analysis.patches import places_of
from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.parallel.mesh import round_up_rows
from transformer_jax.runs.build import batch_rows
from transformer_jax.runs.config import Settings
from transformer_jax.tasks.interface import Batch, Params, Task

WAYS = {"gradient": by_gradient, "switching_off": by_switching_off}


def head_importance(
    settings: Settings, task: Task, params: Params, split: str, by: str
) -> Importance:
    """How much each head matters (Michel et al. 2019).

    Args:
      settings, task, params: of a run.
      split: of its data; examples longer than a row are left out.
      by: "gradient", or "switching_off", which takes a pass over the split for each head.

    Returns:
      for each attention, by the place of its heads, an array [H], in nats a token.

    Raises:
      UserError: another `by`, a model without heads, or the split cannot be used.
    """
    if by not in WAYS:
        raise UserError(f"head_importance: by is {by!r}; it is one of {', '.join(WAYS)}")
    places = places_of(task.init).items()
    heads = {path: axes["head"] or 0 for path, axes in places if path.endswith(".heads")}

    if not heads:
        raise UserError("head_importance: this run's model has no heads")

    def loss(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        total, weight, _ = task.loss(params, batch, None)
        return total, weight

    rows = round_up_rows(batch_rows(settings, task), params)
    batches = list(_examples_apart(task, open_split(settings.data, split), rows))
    return WAYS[by](loss, params, batches, heads)


def _examples_apart(task: Task, examples: Any, rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches of one shape with one example a row."""
    items: list[Any] = [
        task.preprocess(item, np.random.default_rng(0))
        for item in task.prepare(examples, training=False)
    ]
    fitting = [
        item for item in items if all(len(item[name]) <= task.lengths[name] for name in item)
    ]
    for chosen in batched(fitting, rows):
        fillers = [dict.fromkeys(task.lengths, ())] * (rows - len(chosen))
        yield padded_batch([*chosen, *fillers], task.lengths)
