# SPDX-License-Identifier: Apache-2.0
"""Auxiliary losses and metrics, which any module adds by name while a training step is traced.

A module adds sums over its tokens and the number of these; both are added up over micro-batches and
devices and divided once. The training step adds to its loss, for each module, `weight` times the
mean of each auxiliary loss, and the means are recorded as "aux/NAME". Outside training, nothing is
collected.

Example:
  >>> def __call__(self, x):
  ...     add_metric(self, "active", (x > 0).sum(), x.size)
  ...     add_loss(self, "square", jnp.square(x).sum(), weight=0.01, count=x.size)
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

TOTAL = "aux/"
"""Prefix of a total among the sums of a step."""

COUNT = "aux_count/"
"""Prefix of the count that divides a total."""

LIMITS: dict[str, tuple[float, str]] = {}
"""Name of a metric -> the mean above which training warns, once, and the advice."""


class Loss(NamedTuple):
    """Sum of an auxiliary loss over tokens, the same times its weight, what divides it for the mean
    (None: the weight of the task's loss), and the number of modules that added to it."""

    total: Float[Array, ""]
    weighted: Float[Array, ""]
    number: Float[Array, ""] | None
    modules: Float[Array, ""]


class Metric(NamedTuple):
    """Sum of a metric, and what divides it for the mean."""

    total: Float[Array, ""]
    number: Float[Array, ""]


def add_loss(
    module: nn.Module, name: str, total: ArrayLike, weight: float, count: ArrayLike | None = None
) -> None:
    """Adds `weight` times the mean total / count to the loss of the training step.

    A total that is a sum over rows is the same for every division into devices and micro-batches; a
    mean over the batch is not. Of several modules that add to one name, such as layers, each adds
    the mean over all of them.

    Args:
      name: in the records, after "aux/".
      total: sum over the tokens of the batch.
      weight: factor, such as an option of the module.
      count: number of these tokens, which must not depend on parameters; None: the weight of the
        task's loss, such as the number of masked tokens of masked language modeling.
    """
    total = jnp.asarray(total, jnp.float32)
    number = None if count is None else jax.lax.stop_gradient(jnp.asarray(count, jnp.float32))
    _add(module, name, Loss(total, weight * total, number, jnp.ones(())))


def add_metric(module: nn.Module, name: str, total: ArrayLike, count: ArrayLike) -> None:
    """Records the mean total / count; totals and counts of the same name are added up. It has no
    gradient.
    """
    metric = Metric(jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32))
    _add(module, name, jax.lax.stop_gradient(metric))


def is_collected(module: nn.Module) -> bool:
    """Returns True if a training step collects what the module adds."""
    return module.is_mutable_collection(COLLECTION) and not module.is_initializing()


@dataclasses.dataclass
class Collected:
    """Sums by name that models have added in a `collect` context.

    Attributes:
      sums: by name.
      num_applied: number of models, or passes of one, that added to them.
    """

    sums: dict[str, Loss | Metric] = dataclasses.field(default_factory=dict)
    num_applied: int = 0

    def add(self, variables: Mapping[str, Any]) -> None:
        """Adds the sums of all modules of a model that was applied."""
        leaves = jax.tree_util.tree_leaves_with_path(
            variables.get(COLLECTION, {}), is_leaf=lambda node: isinstance(node, Loss | Metric)
        )
        for path, term in leaves:
            name = path[-1].key.removeprefix(TOTAL)
            self.sums[name] = _sum(self.sums.get(name), term)
        self.num_applied += 1

    def loss(
        self, task_loss: Float[Array, ""], counts: Mapping[str, ArrayLike]
    ) -> Float[Array, ""]:
        """Loss of a task plus the auxiliary losses, all as sums to be divided by the task's weight.

        Args:
          counts: of the whole batch, of which this may be a part: "weight", and "aux_count/NAME".
        """
        for name, term in self.sums.items():
            if isinstance(term, Loss) and term.number is None:
                task_loss = task_loss + term.weighted
            elif isinstance(term, Loss):
                modules = term.modules / self.num_applied
                count = jnp.maximum(counts[COUNT + name], 1)
                task_loss = task_loss + term.weighted * (modules * counts["weight"] / count)
        return task_loss

    def to_record(self, weight: ArrayLike) -> dict[str, Array]:
        """Sums and counts for `metrics.compute_metrics`; `weight`, the task's sum of weights,
        divides losses without a count."""
        record: dict[str, Array] = {}
        for name, term in self.sums.items():
            record[TOTAL + name] = term.total
            record[COUNT + name] = jnp.asarray(weight) if term.number is None else term.number
        return record


def collect() -> contextlib.AbstractContextManager[Collected]:
    """Context: models applied inside (`models.apply_model`) add to the `Collected`."""
    return _current_is(Collected())


def outside_training() -> contextlib.AbstractContextManager[None]:
    """Context: models applied inside add nothing, and their modules compute as after training.

    For a model that a loss reads but does not train, such as a teacher.
    """
    return _current_is(None)


@contextlib.contextmanager
def _current_is[T: Collected | None](collected: T) -> Iterator[T]:
    token = _current.set(collected)
    try:
        yield collected
    finally:
        _current.reset(token)


def current() -> Collected | None:
    """Innermost `collect` context; None outside."""
    return _current.get()


def add_sums(module: nn.Module, sums: Mapping[str, Loss | Metric]) -> None:
    """Adds sums of modules that were applied apart from the others, as in `nn.layer_scan`."""
    for name, term in sums.items():
        _add(module, name, term)


def _add(module: nn.Module, name: str, term: Loss | Metric) -> None:
    if is_collected(module):
        # The prefix keeps it apart from the names of submodules and parameters.
        module.sow(COLLECTION, TOTAL + name, term, reduce_fn=_sum, init_fn=lambda: None)


def _sum(total: Loss | Metric | None, term: Loss | Metric) -> Loss | Metric:
    if total is None:
        return term
    if type(total) is not type(term):
        raise ValueError("an auxiliary loss and a metric have the same name; rename one of them")
    return jax.tree.map(jnp.add, total, term)


_current: ContextVar[Collected | None] = ContextVar("collected", default=None)
