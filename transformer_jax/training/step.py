"""The training step: one pure function of state and batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Num

from transformer_jax.training.state import TrainState

Params = Any
"""A tree of parameters, or of their gradients."""

Batch = Any
"""A tree of arrays whose first axis is the batch's rows."""

Sums = dict[str, Num[Array, ""]]
"""Sums over the tokens of a batch, by name."""

LossFn = Callable[
    [Params, Batch, Array | None], tuple[Float[Array, ""], Num[Array, ""], dict[str, Array]]
]
"""(params, batch, key for dropout) -> (sum of losses, sum of weights, further sums)."""


def train_step(
    state: TrainState,
    batch: Batch,
    rate: Float[Array, ""] | None = None,
    *,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int = 1,
    axis_name: str | None = None,
    ema_decay: float | None = None,
    spike_factor: float | None = None,
) -> tuple[TrainState, Sums]:
    """One update of the parameters.

    Gradients, losses and weights are summed over the whole batch and divided once, so that unequal
    padding of micro-batches or devices does not bias the mean over tokens.

    Args:
      state: before the update.
      batch: its rows.
      rate: factor of the update, as if the learning rate were so many times as high.
      loss_fn: sums the losses of a batch.
      optimizer: of optax.
      accumulation_steps: micro-batches that the rows are divided into, one after another.
      axis_name: under `pmap`, of the devices that each run this step on their own rows; their sums
        are added, and each draws its own dropout.
      ema_decay: of the moving average of the parameters, if the state keeps one.
      spike_factor: a gradient whose norm is more than so many times the state's `typical_norm`, or
        which is not finite, changes nothing but the number of the step.

    Returns:
      The state after the update, and the sums of the batch with "loss", "weight" and "grad_norm";
      with a spike factor also "skipped", 1 where nothing was changed: the other sums are then 0.
    """
    update = next_update(
        state,
        batch,
        loss_fn=loss_fn,
        optimizer=optimizer,
        accumulation_steps=accumulation_steps,
        axis_name=axis_name,
    )
    updates = update.updates
    for factor in (rate, state.rate):
        if factor is not None:
            updates = optax.tree.scale(factor, updates)
    trained = optax.apply_updates(state.trained, updates)
    after = state.replace(step=state.step + 1, opt_state=update.opt_state)
    if ema_decay is None:
        after = after.replace(params=trained)
    else:
        average = _moving_average(state.params, trained, ema_decay, after.step)
        after = after.replace(params=average, live=trained)
    if spike_factor is None:
        return after, update.sums
    return _unless_spiked(state, after, update.sums, spike_factor)


class Update(NamedTuple):
    """An update before it is applied.

    Attributes:
      grads: of the mean loss.
      updates: what the optimizer makes of them.
      opt_state: the optimizer's next state.
      sums: of the batch, with "loss", "weight" and "grad_norm".
    """

    grads: Params
    updates: Params
    opt_state: optax.OptState
    sums: Sums


def next_update(
    state: TrainState,
    batch: Batch,
    *,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int = 1,
    axis_name: str | None = None,
) -> Update:
    """The update that a batch asks for; arguments as of `train_step`."""
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    if axis_name is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))

    def loss(params: Params, batch: Batch, key: Array | None) -> Any:
        return loss_fn(state.beside_base(params), batch, key)

    grads, sums = _summed_gradients(loss, state.trained, batch, key, accumulation_steps)
    if axis_name is not None:
        grads, sums = jax.lax.psum((grads, sums), axis_name)
    # Of the sums: the mean is then made where it is used, in the update, and is stored nowhere.
    sums["grad_norm"] = optax.tree.norm(grads) / sums["weight"]
    grads = jax.tree.map(lambda grad: grad / sums["weight"], grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.trained)
    return Update(grads, updates, opt_state, sums)


_UPDATES_BEFORE_SPIKES = 20
"""In which gradients are still as large as they please, unless they are not finite."""
_UPDATES_OF_TYPICAL_NORM = 100


def _unless_spiked(
    before: TrainState, after: TrainState, sums: Sums, factor: float
) -> tuple[TrainState, Sums]:
    """The state after an update, or the one before it with the next number, and sums of 0."""
    norm, typical = sums["grad_norm"], before.typical_norm
    assert typical is not None
    largest = jnp.finfo(norm.dtype).max
    early = (before.step < _UPDATES_BEFORE_SPIKES) | (typical == 0)
    limit = jnp.where(early, largest, factor * typical)
    spiked = ~((norm <= limit) & jnp.isfinite(sums["loss"]))  # a comparison with NaN is false
    weight = jnp.where(typical == 0, 1, 1 / jnp.minimum(after.step, _UPDATES_OF_TYPICAL_NORM))
    after = after.replace(typical_norm=typical + weight * (norm - typical))
    kept = before.replace(step=after.step)

    def chosen(old: Array, new: Array) -> Array:
        return jnp.where(spiked, old, new)

    state = jax.tree.map(chosen, kept.saved, after.saved).replace(base=before.base)
    sums = {name: chosen(jnp.zeros_like(total), total) for name, total in sums.items()}
    return state, sums | {"skipped": spiked.astype(jnp.float32)}


def _moving_average(average: Params, params: Params, decay: float, step: Int[Array, ""]) -> Params:
    """d * average + (1 - d) * params, where d = min(decay, (1 + n) / (10 + n)) at update n: early
    averages forget faster, so that the initial parameters do not weigh for long."""
    weight = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda old, new: old + weight * (new - old), average, params)


def _summed_gradients(
    loss_fn: LossFn, params: Params, batch: Batch, key: Array, accumulation_steps: int
) -> tuple[Params, Sums]:
    """Gradients of the summed loss, and the sums, over all micro-batches."""
    if accumulation_steps == 1:
        return _gradients(loss_fn, params, batch, key)

    def add_micro_batch(
        total: tuple[Params, Sums], numbered: tuple[Batch, Int[Array, ""]]
    ) -> tuple[tuple[Params, Sums], None]:
        micro_batch, index = numbered
        found = _gradients(loss_fn, params, micro_batch, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, found), None

    def divided(x: Num[Array, "B ..."]) -> Num[Array, "A M ..."]:
        """A micro-batches of M rows, of which neighbours go apart: no row leaves its device."""
        return jnp.moveaxis(x.reshape(-1, accumulation_steps, *x.shape[1:]), 1, 0)

    micro_batches = jax.tree.map(divided, batch)
    first = jax.tree.map(lambda x: x[0], micro_batches)
    shapes = jax.eval_shape(lambda: _gradients(loss_fn, params, first, key))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    numbered = (micro_batches, jnp.arange(accumulation_steps))
    return jax.lax.scan(add_micro_batch, zeros, numbered)[0]


def _gradients(loss_fn: LossFn, params: Params, batch: Batch, key: Array) -> tuple[Params, Sums]:
    """Gradients of the summed loss, and the sums, of one micro-batch."""

    def loss(params: Params) -> tuple[Float[Array, ""], Sums]:
        loss, weight, sums = loss_fn(params, batch, key)
        return loss, {"loss": loss, "weight": weight, **sums}

    return jax.grad(loss, has_aux=True)(params)
