# SPDX-License-Identifier: Apache-2.0
"""Importance of attention heads (Michel et al. 2019).

Two measures: the gradient of the loss with respect to a gate on each head's output, and the loss
without the head. B rows, H heads.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.nn.hooks import HookPoint, intercept_activations
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runs.build import batch_rows
from transformer_jax.runs.run import Run
from transformer_jax.runtime import platform
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import Params

Batch = Mapping[str, Any]
Loss = Callable[[Any, Batch], tuple[Array, Array]]
"""(params, batch) -> summed loss and summed weight of the batch."""

Gates = Mapping[str, Float[Array | np.ndarray, "B H"]]


class Importance(Summarized, dict[str, Float[np.ndarray, " H"]]):
    """Path of the heads, such as "encoder.layer_0.self_attention.heads" -> importance of each."""

    def summary(self) -> Mapping[str, Any]:
        """The importance of the heads of each attention."""
        return {path: " ".join(f"{x:.4f}" for x in heads) for path, heads in self.items()}


def by_gradient(
    loss: Loss, params: Any, batches: Iterable[Batch], heads: Mapping[str, int]
) -> Importance:
    """Mean over examples x of |dL(x) / d gate| at gates of 1, in nats a token.

    Equation 2 of Michel et al., with L(x) the summed loss of x.

    Args:
      loss: without dropout.
      batches: one example a row.
      heads: number of heads by path.
    """

    def gradients(params: Any, batch: Batch) -> tuple[Array, Gates]:
        rows = len(next(iter(batch.values())))
        # A gate for each row, because the absolute value is taken of each example's gradient.
        gates = {place: jnp.ones((rows, count)) for place, count in heads.items()}
        by_gate, weight = jax.grad(_gated, has_aux=True)(gates, loss, params, batch)
        return weight, jax.tree.map(lambda x: jnp.abs(x).sum(axis=0), by_gate)

    program = jax.jit(gradients, compiler_options=platform.compiler_options())
    weight, sums = _summed(program, params, batches)
    return Importance({place: x / weight for place, x in sums.items()})


def by_switching_off(
    loss: Loss, params: Any, batches: Sequence[Batch], heads: Mapping[str, int]
) -> Importance:
    """Increase of the loss without a head, in nats a token; negative if the loss falls.

    Each head takes one more pass over the batches. Arguments of `by_gradient`.
    """

    def sums(params: Any, batch: Batch, gates: Gates) -> tuple[Array, Array]:
        total, weight = _gated(gates, loss, params, batch)
        return weight, total

    program = jax.jit(sums, compiler_options=platform.compiler_options())
    ones = {place: np.ones((1, count), np.float32) for place, count in heads.items()}

    def mean_loss(gates: Gates) -> float:
        weight, total = _summed(functools.partial(program, gates=gates), params, batches)
        return float(total / weight)

    with_all = mean_loss(ones)
    importance = Importance()
    for place, count in heads.items():
        without = 1 - np.eye(count, dtype=np.float32)  # row i switches head i off
        losses = [mean_loss({**ones, place: gates[None]}) for gates in without]
        importance[place] = np.array(losses) - with_all
    return importance


def _gated(gates: Gates, loss: Loss, params: Any, batch: Batch) -> tuple[Array, Array]:
    """Loss with the outputs of the heads multiplied by gates."""

    def scale(point: HookPoint, x: Array) -> Array:
        return x * gates[point.path][:, :, None, None]

    with intercept_activations(scale, gates.__contains__):
        return loss(params, batch)


def _summed(program: Callable[..., Any], params: Any, batches: Iterable[Batch]) -> Any:
    sums = [hosts.to_host(program(params, place_like(params, batch))) for batch in batches]
    return jax.tree.map(lambda *of_batches: sum(of_batches), *sums)


MEASURES = {"gradient": by_gradient, "switching_off": by_switching_off}


def head_importance(run: Run, split: str = "valid", by: str = "gradient") -> Importance:
    """Importance of each head for the loss of a split, [H] in nats a token by path of the heads.

    Args:
      split: of the run's data; examples longer than a row are left out.
      by: "gradient", or "switching_off", which takes a pass over the split for each head.

    Raises:
      UserError: `by` is unknown, the model has no heads, or the split cannot be used.
    """
    if by not in MEASURES:
        raise UserError(f"head_importance: by is {by!r}; choose from {', '.join(MEASURES)}")
    points = run.hook_points.items()
    heads = {path: axes["head"] or 0 for path, axes in points if path.endswith(".heads")}
    if not heads:
        raise UserError("head_importance: this run's model has no heads")

    def loss(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        total, weight, _ = run.task.loss(params, batch, None, run.frozen)
        return total, weight

    task = run.task
    prepared = task.prepare(open_split(run.settings.data, split), training=False)
    items: list[Any] = [task.preprocess(item, np.random.default_rng(0)) for item in prepared]
    items = [item for item in items if all(len(item[name]) <= task.lengths[name] for name in item)]
    if not items:
        raise UserError(f"head_importance: no example of {split} fits in a row")
    rows = round_up_rows(batch_rows(run.settings, task), run.params)
    batches = []  # of equal shape, with one example a row
    for chosen in batched(items, rows):
        fillers = [dict.fromkeys(task.lengths, ())] * (rows - len(chosen))
        batches.append(padded_batch([*chosen, *fillers], task.lengths))
    return MEASURES[by](loss, run.params, batches, heads)
