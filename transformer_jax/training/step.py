"""The training step: one pure function of state and batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.training.state import TrainState

LossFn = Callable[[Any, Any, jax.Array | None], tuple[jax.Array, jax.Array, dict[str, jax.Array]]]


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int = 1,
    axis_name: str | None = None,
    ema_decay: float | None = None,
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Builds `train_step(state, batch, rate=None) -> (state, sums)`; `rate` scales the update, as a
    learning rate so many times as high would.

    Gradients, losses and weights are summed over the whole batch and divided once, so that neither
    micro-batches nor devices with more padding than others bias the mean over tokens.

    Args:
      loss_fn: (params, batch, rng) -> (sum of losses, sum of weights, further sums).
      optimizer: of optax.
      accumulation_steps: micro-batches that the rows of a batch are divided into, one after
        another.
      ema_decay: of the moving average of the parameters, if the state keeps one.
      axis_name: of the devices that each run this step on rows of their own, under `pmap`; their
        sums are added up, and each draws its own dropout.
    """

    def train_step(
        state: TrainState, batch: Any, rate: jax.Array | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        if axis_name is not None:
            rng = jax.random.fold_in(rng, jax.lax.axis_index(axis_name))
        live = state.params if ema_decay is None else state.live
        grads, sums = _summed_gradients(loss_fn, live, batch, rng, accumulation_steps)
        if axis_name is not None:
            grads, sums = jax.lax.psum((grads, sums), axis_name)
        grads = jax.tree.map(lambda grad: grad / sums["weight"], grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, live)
        if rate is not None:
            updates = jax.tree.map(lambda update: rate * update, updates)
        sums["grad_norm"] = optax.tree.norm(grads)
        live = optax.apply_updates(live, updates)
        state = state.replace(step=state.step + 1, opt_state=opt_state)
        if ema_decay is None:
            return state.replace(params=live), sums
        average = _moved_average(state.params, live, ema_decay, state.step)
        return state.replace(params=average, live=live), sums

    return train_step


def _moved_average(average, params, decay, step):
    """decay * average + (1 - decay) * params; early averages forget sooner, min(decay, (1 + n) /
    (10 + n)), lest the first parameters weigh for long."""
    weight = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda old, new: old + weight * (new - old), average, params)


def _summed_gradients(loss_fn, params, batch, rng, accumulation_steps):
    """Gradients of the summed loss, and the sums, over all micro-batches."""

    def gradients(micro_batch, rng):
        def loss(params):
            loss, weight, sums = loss_fn(params, micro_batch, rng)
            return loss, {"loss": loss, "weight": weight, **sums}

        return jax.grad(loss, has_aux=True)(params)

    if accumulation_steps == 1:
        return gradients(batch, rng)

    def add_micro_batch(total, step):
        micro_batch, index = step
        grads = gradients(micro_batch, jax.random.fold_in(rng, index))
        return jax.tree.map(jnp.add, total, grads), None

    def divided(x):
        """[B, ...] -> [A, B / A, ...]; neighbours part, so that no row leaves its device."""
        return jnp.moveaxis(x.reshape(-1, accumulation_steps, *x.shape[1:]), 1, 0)

    micro_batches = jax.tree.map(divided, batch)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(gradients, jax.tree.map(lambda x: x[0], micro_batches), rng),
    )
    steps = (micro_batches, jnp.arange(accumulation_steps))
    return jax.lax.scan(add_micro_batch, zeros, steps)[0]
