# SPDX-License-Identifier: Apache-2.0
"""Auxiliary losses and metrics: a step adds them up by hand's formula, however it is divided."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from tests.compiled import assert_near, run
from tests.models.texts import PADDED, small_config
from transformer_jax.metrics import compute_metrics
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn import auxiliary
from transformer_jax.nn.auxiliary import add_loss, add_metric
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layer_scan import stack_layers, unstack_layers
from transformer_jax.nn.transformer import rematerialized_layers
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import compute_update

WEIGHT = 0.3
SIZES = {"d_model": 8, "d_ff": 12, "num_heads": 2}
CONFIG = small_config(attention_window=2, **SIZES, num_layers=2)
BATCH = dict(zip(("tokens", "positions", "segment_ids"), PADDED, strict=True))


def add_squares(method, args, kwargs, context):
    """Interceptor: feed-forward layers add the squares of their output."""
    y = method(*args, **kwargs)
    if isinstance(context.module, FeedForward) and context.method_name == "__call__":
        add_loss(context.module, "square", (y**2).sum(), WEIGHT)
        add_loss(context.module, "counted", (y**4).sum(), WEIGHT, count=y.size)
        add_metric(context.module, "positive", (y > 0).sum(), y.size)
    return y


def task_loss(model, params, batch):
    """Sum of squared logits, and the number of tokens."""
    logits = apply_model(model, params, *(batch[name] for name in BATCH))
    real = batch["segment_ids"] > 0
    return (logits**2 * real[..., None]).sum(), real.sum().astype(jnp.float32)


def by_hand(model, params):
    """Loss and gradient of the mean: feed-forward outputs are captured instead of added."""

    def loss(params):
        logits, found = model.apply(
            {"params": params},
            *PADDED,
            capture_intermediates=lambda module, name: isinstance(module, FeedForward),
        )
        layers = found["intermediates"]["decoder"].values()
        outputs = [layer["feed_forward"]["__call__"][0] for layer in layers]
        squares = sum((y**2).sum() for y in outputs)
        real = PADDED[2] > 0
        size = sum(y.size for y in outputs)
        means = {
            "square": squares / real.sum(),
            "counted": sum((y**4).sum() for y in outputs) / size,
            "positive": sum((y > 0).sum() for y in outputs) / size,
        }
        main = (logits**2 * real[..., None]).sum()
        loss = (main + WEIGHT * squares) / real.sum()
        return loss + WEIGHT * len(outputs) * means["counted"], means

    (_, means), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return means, grads


@pytest.fixture(scope="module")
def expected(random_params):
    """(model, parameters, means, gradient)."""
    model = DecoderOnly(CONFIG)
    params = random_params(model, *PADDED)["params"]
    return model, params, *jax.jit(by_hand, static_argnums=0)(model, params)


def updated(model, params, remat="none", parts=1, devices=1):
    """Gradients and sums of a step; devices are emulated by `vmap` with the axis of `pmap`."""
    optimizer = optax.sgd(1.0)

    def loss(params, batch, rng, frozen):
        with nn.intercept_methods(add_squares), rematerialized_layers(remat):
            return *task_loss(model, params, batch), {"tokens": jnp.float32(1)}

    def update(batch):
        options = {"accumulation_steps": parts, "axis_name": "devices" if devices > 1 else None}
        state = TrainState.create(params, optimizer, jax.random.key(0))
        found = compute_update(state, batch, loss_fn=loss, optimizer=optimizer, **options)
        return found.grads, found.sums

    if devices == 1:
        return jax.jit(update)(BATCH)
    rows = jax.tree.map(lambda x: jnp.reshape(x, (devices, -1, *x.shape[1:])), BATCH)
    found = jax.jit(jax.vmap(update, axis_name="devices"))(rows)
    return jax.tree.map(lambda x: x[0], found)


@pytest.mark.parametrize(
    "scanned, division",
    [(True, {"parts": 2, "remat": "full"}), (False, {"devices": 2, "remat": "dots"})],
)
def test_a_step_adds_what_modules_add(expected, scanned, division):
    model, params, means, gradient = expected
    params = run(stack_layers, params) if scanned else params
    grads, sums = updated(model, params, **division)
    assert_near(run(unstack_layers, grads), gradient, 1e-5)
    metrics = compute_metrics(sums | {"filled": 1.0, "slots": 1.0})
    recorded = {name: float(metrics[f"aux/{name}"]) for name in means}
    assert recorded == pytest.approx({name: float(mean) for name, mean in means.items()}, rel=1e-5)


def test_nothing_is_added_outside_a_step(expected):
    model, params, *_ = expected
    traced = functools.partial(jax.eval_shape, functools.partial(apply_model, model), params)
    with nn.intercept_methods(add_squares):
        logits = traced(*PADDED)  # no pair of outputs and variables
        assert logits.ndim == 3
        with auxiliary.collect() as outer:
            with auxiliary.collect():
                traced(*PADDED)
            assert outer.sums == {}
        assert "auxiliary" not in jax.eval_shape(model.init, jax.random.key(0), *PADDED)


def test_a_loss_and_a_metric_of_one_name_are_refused():
    class Both(nn.Module):
        def __call__(self, deterministic):
            add_loss(self, "same", jnp.ones(()), 1.0)
            add_metric(self, "same", jnp.ones(()), 1)

    with auxiliary.collect(), pytest.raises(ValueError, match="same name"):
        apply_model(Both(), {})
