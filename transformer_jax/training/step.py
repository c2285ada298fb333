"""The training step: one pure function of state and batch."""

from collections.abc import Callable
from typing import Any

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

    Returns:
      The state after the update, and the sums of the batch with "loss", "weight" and "grad_norm".
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    if axis_name is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    live = state.params if ema_decay is None else state.live

    def loss(params: Params, batch: Batch, key: Array | None) -> Any:
        return loss_fn(state.beside_base(params), batch, key)

    grads, sums = _summed_gradients(loss, live, batch, key, accumulation_steps)
    if axis_name is not None:
        grads, sums = jax.lax.psum((grads, sums), axis_name)
    # Of the sums: the mean is then made where it is used, in the update, and is stored nowhere.
    sums["grad_norm"] = optax.tree.norm(grads) / sums["weight"]
    grads = jax.tree.map(lambda grad: grad / sums["weight"], grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, live)
    for factor in (rate, state.rate):
        if factor is not None:
            updates = optax.tree.scale(factor, updates)
    live = optax.apply_updates(live, updates)
    state = state.replace(step=state.step + 1, opt_state=opt_state)
    if ema_decay is None:
        return state.replace(params=live), sums
    average = _moving_average(state.params, live, ema_decay, state.step)
    return state.replace(params=average, live=live), sums


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
