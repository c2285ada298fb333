# SPDX-License-Identifier: Apache-2.0
"""Auxiliary losses and metrics, which any module adds by name while a training step is traced.

A module adds sums over its tokens; they are added up over layers, micro-batches and devices as the
loss of the task is. The training step adds `weight` times each auxiliary loss to that loss, and the
means are recorded as "aux/NAME". Outside training, nothing is collected.

Example:
  >>> def __call__(self, x):
  ...     add_metric(self, "active", (x > 0).sum(), x.size)
  ...     add_loss(self, "square", jnp.square(x).sum(), weight=0.01)
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

COLLECTION = "auxiliary"
"""Flax collection that carries sums out of a module, through rematerialization and scans."""

TOTAL, COUNT = "aux/", "aux_count/"
"""Prefixes of a total, and of the count that divides it, among the sums of a step."""


LIMITS: dict[str, tuple[float, str]] = {}
"""Name of a metric -> the mean above which training warns, once, and the advice."""


class Loss(NamedTuple):
    """Sum of an auxiliary loss over tokens, and the same times its weight."""

    total: Float[Array, ""]
    weighted: Float[Array, ""]


class Metric(NamedTuple):
    """Sum of a metric, and what divides it for the mean."""

    total: Float[Array, ""]
    number: Float[Array, ""]


def add_loss(module: nn.Module, name: str, total: ArrayLike, weight: float) -> None:
    """Adds `weight` times a loss to the loss of the training step.

    The step divides by the sum of the task's weights, as it divides the task's own loss. A total
    that is a sum over rows is the same for every division into devices and micro-batches; a mean
    over the batch is not. Losses of the same name are added up, over layers too.

    Args:
      module: bound module.
      name: name in the records, after "aux/".
      total: sum over the tokens of the batch.
      weight: factor, such as an option of the module.
    """
    total = jnp.asarray(total, jnp.float32)
    _add(module, name, Loss(total, weight * total))


def add_metric(module: nn.Module, name: str, total: ArrayLike, count: ArrayLike) -> None:
    """Records the mean total / count; totals and counts of the same name are added up.

    Args:
      module: bound module.
      name: name in the records, after "aux/".
      total: sum over the batch; it has no gradient.
      count: number of summands.
    """
    metric = Metric(jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32))
    _add(module, name, jax.lax.stop_gradient(metric))


def is_collected(module: nn.Module) -> bool:
    """Returns True if a training step collects what the module adds."""
    return module.is_mutable_collection(COLLECTION) and not module.is_initializing()


@dataclasses.dataclass
class Collected:
    """Sums that models have added in a `collect` context.

    Attributes:
      sums: sums by name.
    """

    sums: dict[str, Loss | Metric] = dataclasses.field(default_factory=dict)

    def add(self, variables: Mapping[str, Any]) -> None:
        """Adds the sums in variables that a module returned."""
        self.sums = _merge(self.sums, sums_by_name(variables))

    def loss(self, task_loss: Float[Array, ""]) -> Float[Array, ""]:
        """Loss of a task plus the weighted auxiliary losses."""
        for each in self.sums.values():
            task_loss = task_loss + each.weighted if isinstance(each, Loss) else task_loss
        return task_loss

    def to_record(self, weight: ArrayLike) -> dict[str, Array]:
        """Sums and counts for `metrics.compute_metrics`.

        Args:
          weight: the task's sum of weights, which divides losses.
        """
        found: dict[str, Array] = {}
        for name, each in self.sums.items():
            found[TOTAL + name] = each.total
            found[COUNT + name] = jnp.asarray(weight) if isinstance(each, Loss) else each.number
        return found


@contextlib.contextmanager
def collect() -> Iterator[Collected]:
    """Context: models applied inside (`models.apply_model`) add to the `Collected`.

    A nested context takes what is added inside it. So a loss that applies a second model, such as
    a teacher, leaves that model's sums out by applying it in a context of its own.
    """
    collected = Collected()
    token = _current.set(collected)
    try:
        yield collected
    finally:
        _current.reset(token)


def current() -> Collected | None:
    """Innermost `collect` context; None outside."""
    return _current.get()


def sums_by_name(variables: Mapping[str, Any]) -> dict[str, Loss | Metric]:
    """Adds up the sums that modules added, whatever the module."""
    found: dict[str, Loss | Metric] = {}
    leaves = jax.tree_util.tree_leaves_with_path(
        variables.get(COLLECTION, {}), is_leaf=lambda node: isinstance(node, Loss | Metric)
    )
    for path, each in leaves:
        found = _merge(found, {path[-1].key: each})
    return found


def add_sums(module: nn.Module, sums: Mapping[str, Loss | Metric]) -> None:
    """Adds sums of modules that were applied apart from the others, as in `nn.layer_scan`."""
    for name, each in sums.items():
        _add(module, name, each)


def _add(module: nn.Module, name: str, value: Loss | Metric) -> None:
    if is_collected(module):
        module.sow(COLLECTION, name, value, reduce_fn=_sum, init_fn=lambda: None)


def _merge(
    sums: Mapping[str, Loss | Metric], more: Mapping[str, Loss | Metric]
) -> dict[str, Loss | Metric]:
    return {**sums, **{name: _sum(sums.get(name), each) for name, each in more.items()}}


def _sum(one: Loss | Metric | None, other: Loss | Metric) -> Loss | Metric:
    if one is None:
        return other
    if type(one) is not type(other):
        raise ValueError("an auxiliary loss and a metric have the same name; rename one of them")
    return jax.tree.map(jnp.add, one, other)


_current: ContextVar[Collected | None] = ContextVar("collected", default=None)
