# SPDX-License-Identifier: Apache-2.0
"""The training step: a pure function of state and batch.

`train_step` computes an update from a batch and applies it. `parallel.engines` compiles it.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Num

from transformer_jax.metrics import LossSums
from transformer_jax.nn import auxiliary
from transformer_jax.nn.traced_numbers import LEARNING_RATE, use_traced_numbers
from transformer_jax.training.state import TrainState

Params = Any
"""Tree of parameters, or of their gradients."""

Batch = Any
"""Tree of arrays whose first axis is the rows of the batch."""

Sums = dict[str, Num[Array, ""]]
"""Sums over the tokens of a batch: name -> sum."""

LossFn = Callable[[Params, Batch, Array | None, Mapping[str, Params]], LossSums]
"""(params, batch, dropout key, frozen) -> sums."""

_GradFn = Callable[[Params, Batch, Array], tuple[Params, Sums]]
"""(params, batch, dropout key) -> gradients of the summed loss, and the sums."""

_STEPS_BEFORE_SPIKES = 20
"""Steps before spike detection starts; until then only non-finite gradients are skipped."""
_STEPS_OF_TYPICAL_NORM = 100
"""Steps over which the typical norm is averaged, more or less."""


def train_step(
    state: TrainState,
    batch: Batch,
    numbers: Mapping[str, Any] | None = None,
    *,
    ema_decay: float | None = None,
    spike_factor: float | None = None,
    **options: Any,
) -> tuple[TrainState, Sums]:
    """Updates the parameters once.

    Args:
      batch, numbers: as of `compute_update`.
      ema_decay: decay of the moving average of the parameters, if the state has one.
      spike_factor: skip the update if the gradient norm is not finite or exceeds `spike_factor`
        times `state.typical_norm`: then only the number of the step changes, and the schedule's.
      **options: of `compute_update`: `loss_fn`, `optimizer` and so on.

    Returns:
      The state after the step, and sums of the batch with "loss", "weight" and "grad_norm". With a
      spike factor also "skipped": 1 if the update was skipped; the other sums are then 0.
    """
    update = compute_update(state, batch, numbers, **options)
    after = _apply_update(state, update, ema_decay)
    if spike_factor is None:
        return after, update.sums
    return _skip_spike(state, after, update.sums, spike_factor)


class Update(NamedTuple):
    """An update that is not applied yet.

    Attributes:
      grads: gradients of the mean loss.
      updates: output of the optimizer.
      opt_state: next state of the optimizer.
      sums: sums of the batch, with "loss", "weight" and "grad_norm".
    """

    grads: Params
    updates: Params
    opt_state: optax.OptState
    sums: Sums


def compute_update(
    state: TrainState,
    batch: Batch,
    numbers: Mapping[str, Any] | None = None,
    *,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int = 1,
    axis_name: str | None = None,
) -> Update:
    """Computes gradients and the optimizer's update.

    Gradients, losses and weights are summed over the whole batch and divided once, so that unequal
    padding of micro-batches or devices does not bias the mean over tokens. The gradient includes
    the losses that modules add (`nn.auxiliary`); "loss" is that of the task alone.

    Args:
      numbers: numbers of the config that are traced, by field (`nn.traced_numbers`).
      loss_fn: computes the summed loss of a batch.
      accumulation_steps: micro-batches, which are processed one after another.
      axis_name: `pmap` axis of devices that each run this step on their own rows. Their sums are
        added; each device has its own dropout.
    """
    # The key follows from the number of the step, so a resumed run has the same dropout.
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    if axis_name is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    numbers = dict(numbers or {})
    if state.rate is not None:
        numbers[LEARNING_RATE] = state.rate * numbers.get(LEARNING_RATE, 1.0)
    with use_traced_numbers(numbers):
        counts = None
        if accumulation_steps > 1 or axis_name is not None:
            counts = _count_all(loss_fn, state, batch, key, accumulation_steps, axis_name)
        grad_fn = jax.grad(functools.partial(_loss_and_aux, loss_fn, state, counts), has_aux=True)
        grads, sums = _accumulate(grad_fn, state.trained, batch, key, accumulation_steps)
    if axis_name is not None:
        grads, sums = jax.lax.psum((grads, sums), axis_name)
    weight = jnp.where(sums["weight"] == 0, 1, sums["weight"])  # nothing counts: the sums are 0
    # The norm of the sums, so that XLA divides where the mean is used and does not store it.
    sums["grad_norm"] = optax.tree.norm(grads) / weight
    grads = jax.tree.map(lambda grad: grad / weight, grads)
    with use_traced_numbers(numbers):
        updates, opt_state = optimizer.update(grads, state.opt_state, state.trained)
    return Update(grads, updates, opt_state, sums)


def _loss_and_aux(
    loss_fn: LossFn,
    state: TrainState,
    counts: Sums | None,
    params: Params,
    batch: Batch,
    key: Array,
) -> tuple[Float[Array, ""], Sums]:
    """Summed loss to differentiate, with the losses that modules add, and the sums of the batch.

    Args:
      counts: as of `_count_all`; None: this is the whole batch.
    """
    with auxiliary.collect() as added:
        loss, weight, sums = loss_fn(state.with_base(params), batch, key, state.frozen)
    sums = {"loss": loss, "weight": weight, **sums, **added.to_record(weight)}
    return added.loss(loss, sums if counts is None else counts), sums


def _count_all(
    loss_fn: LossFn,
    state: TrainState,
    batch: Batch,
    key: Array,
    accumulation_steps: int,
    axis_name: str | None,
) -> Sums:
    """Weight and counts of all micro-batches and devices, which divide the losses that modules add.

    They follow from the masks of the batch, so that XLA drops the rest of this forward pass.
    """

    def count(params: Params, batch: Batch, key: Array) -> tuple[tuple[()], Sums]:
        _, sums = _loss_and_aux(loss_fn, state, None, params, batch, key)
        names = [name for name in sums if name.startswith(auxiliary.COUNT)]
        return (), {name: sums[name] for name in ("weight", *names)}

    _, shapes = jax.eval_shape(count, state.trained, batch, key)
    if len(shapes) == 1:  # no module adds anything
        return {}
    _, counts = _accumulate(count, state.trained, batch, key, accumulation_steps)
    return counts if axis_name is None else jax.lax.psum(counts, axis_name)


def _accumulate(
    grad_fn: _GradFn, params: Params, batch: Batch, key: Array, accumulation_steps: int
) -> tuple[Params, Sums]:
    """Adds up gradients and sums over micro-batches, each with its own dropout."""
    if accumulation_steps == 1:
        return grad_fn(params, batch, key)

    def split(x: Num[Array, "B ..."]) -> Num[Array, "A M ..."]:
        """Splits rows into A micro-batches of M rows. Each takes every A-th row, so that no row
        leaves its device."""
        return jnp.moveaxis(x.reshape(-1, accumulation_steps, *x.shape[1:]), 1, 0)

    def add_micro_batch(
        total: tuple[Params, Sums], numbered: tuple[Batch, Int[Array, ""]]
    ) -> tuple[tuple[Params, Sums], None]:
        micro_batch, index = numbered
        gradients_and_sums = grad_fn(params, micro_batch, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, gradients_and_sums), None

    micro_batches = jax.tree.map(split, batch)
    first = jax.tree.map(lambda x: x[0], micro_batches)
    # The names of the sums are known only once the loss is traced.
    shapes = jax.eval_shape(lambda: grad_fn(params, first, key))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    numbered = (micro_batches, jnp.arange(accumulation_steps))
    return jax.lax.scan(add_micro_batch, zeros, numbered)[0]


def _apply_update(state: TrainState, update: Update, ema_decay: float | None) -> TrainState:
    trained = optax.apply_updates(state.trained, update.updates)
    after = state.replace(step=state.step + 1, opt_state=update.opt_state)
    if ema_decay is None:
        return after.replace(params=trained)
    average = _moving_average(state.params, trained, ema_decay, after.step)
    return after.replace(params=average, live=trained)


def _moving_average(average: Params, params: Params, decay: float, step: Int[Array, ""]) -> Params:
    """d * average + (1 - d) * params with d = min(decay, (1 + n) / (10 + n)) at step n.

    Early averages forget faster, so that the initial parameters soon lose their weight.
    """
    weight = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda old, new: old + weight * (new - old), average, params)


def _skip_spike(
    before: TrainState, after: TrainState, sums: Sums, factor: float
) -> tuple[TrainState, Sums]:
    """Undoes an update whose gradient norm spiked, except for the number of the step, also in the
    schedule: the learning rate is that of the step, however many were skipped."""
    norm = sums["grad_norm"]
    typical = before.typical_norm
    assert typical is not None
    largest = jnp.finfo(norm.dtype).max
    early = (before.step < _STEPS_BEFORE_SPIKES) | (typical == 0)
    limit = jnp.where(early, largest, factor * typical)
    spiked = ~((norm <= limit) & jnp.isfinite(sums["loss"]))  # a comparison with NaN is false
    # The mean over all steps so far, later a moving average.
    weight = jnp.where(typical == 0, 1, 1 / jnp.minimum(after.step, _STEPS_OF_TYPICAL_NORM))
    after = after.replace(typical_norm=typical + weight * (norm - typical))
    opt_state = jax.tree.map(
        lambda old, new: new if isinstance(old, optax.ScaleByScheduleState) else old,
        before.opt_state,
        after.opt_state,
        is_leaf=lambda node: isinstance(node, optax.ScaleByScheduleState),
    )
    skipped = before.replace(step=after.step, opt_state=opt_state)

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(spiked, old, new)

    # Frozen parameters are the same before and after: nothing to choose.
    state = jax.tree.map(choose, skipped.saved, after.saved).replace(frozen=before.frozen)
    sums = {name: choose(jnp.zeros_like(total), total) for name, total in sums.items()}
    return state, sums | {"skipped": spiked.astype(jnp.float32)}
