# SPDX-License-Identifier: Apache-2.0
"""The training step: means over all weights, micro-batches, random keys, averages and spikes."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.nn.parameters import SIDE_GRADIENT
from transformer_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import train_step

SGD = optax.sgd(0.5)


def squared_error(params, batch, rng, frozen):
    """Weighted squared error of a linear model, with a random draw among the sums."""
    error = batch["x"] @ params["w"] - batch["y"]
    draw = jax.random.uniform(rng)
    sums = {"draw": draw, "draw_squared": draw**2}
    return (batch["weight"] * error**2).sum(), batch["weight"].sum(), sums


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    # The halves and thirds of the batch have different total weights, as padding makes them.
    return {"x": x, "y": y, "weight": np.array([1, 0, 0, 0, 1, 1], np.float32)}


@pytest.fixture
def start():
    return TrainState.create({"w": jnp.array([0.5, -1.0, 2.0])}, SGD, jax.random.key(3))


def jit_step(loss_fn=squared_error, optimizer=SGD, **options):
    return jax.jit(partial(train_step, loss_fn=loss_fn, optimizer=optimizer, **options))


def test_the_gradient_is_that_of_the_weighted_mean(batch, start):
    state, sums = jit_step()(start, batch)
    before = np.array(start.params["w"])
    error = batch["x"] @ before - batch["y"]
    grad = 2 * (batch["weight"] * error) @ batch["x"] / 3
    np.testing.assert_allclose(state.params["w"], before - 0.5 * grad, rtol=1e-5)
    np.testing.assert_allclose(sums["grad_norm"], np.linalg.norm(grad), rtol=1e-5)
    np.testing.assert_allclose(sums["loss"], (batch["weight"] * error**2).sum(), rtol=1e-5)
    assert sums["weight"] == 3
    assert state.step == 1


@pytest.mark.parametrize("accumulation_steps", [2, 3, 6])
def test_micro_batches_of_unequal_weight_equal_one_large_batch(batch, start, accumulation_steps):
    state, sums = jit_step(accumulation_steps=accumulation_steps)(start, batch)
    expected, expected_sums = jit_step()(start, batch)
    np.testing.assert_allclose(state.params["w"], expected.params["w"], rtol=1e-5)
    for name in ("loss", "weight", "grad_norm"):
        np.testing.assert_allclose(sums[name], expected_sums[name], rtol=1e-5)
    assert state.step == 1


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_batch_in_which_nothing_counts_has_gradient_zero(batch, start, accumulation_steps):
    step = jit_step(accumulation_steps=accumulation_steps)
    after, sums = step(start, batch | {"weight": np.zeros(6, np.float32)})
    np.testing.assert_array_equal(after.params["w"], start.params["w"])
    assert sums["weight"] == sums["loss"] == sums["grad_norm"] == 0


def test_each_step_and_micro_batch_has_its_own_key(batch, start):
    step = jit_step()
    second, first_sums = step(start, batch)
    _, second_sums = step(second, batch)
    _, again_sums = step(start, batch)
    assert first_sums["draw"] == again_sums["draw"] != second_sums["draw"]
    np.testing.assert_array_equal(second.rng, start.rng)
    _, sums = jit_step(accumulation_steps=2)(start, batch)
    # Equal draws d, d would have a sum of squares of (d + d)^2 / 2.
    assert not np.isclose(sums["draw_squared"], sums["draw"] ** 2 / 2, rtol=1e-3)


def test_the_moving_average_follows_the_parameters_that_train(batch, start):
    optimizer = optax.sgd(0.05)
    plain = jit_step(optimizer=optimizer)
    averaging = jit_step(optimizer=optimizer, ema_decay=0.6)
    alone = start
    state = TrainState.create(start.params, optimizer, jax.random.key(3), keeps_average=True)
    expected = np.array(start.params["w"])
    for n in range(1, 20):
        alone, _ = plain(alone, batch)
        state, _ = averaging(state, batch)
        np.testing.assert_allclose(state.live["w"], alone.params["w"], rtol=1e-6)
        weight = min(0.6, (1 + n) / (10 + n))
        expected = weight * expected + (1 - weight) * np.array(alone.params["w"])
        np.testing.assert_allclose(state.params["w"], expected, rtol=1e-5)
    assert not np.allclose(state.params["w"], state.live["w"], rtol=1e-3)
    assert alone.live is None


def test_a_plateau_lowers_the_rate_but_moves_statistics_as_before():
    """Averages of norms move by a tenth of their way at any learning rate."""
    config = OptimizerConfig(name="sgd", beta1=0.0, schedule="constant", warmup_steps=1)
    optimizer = make_optimizer(config, make_schedule(config, 64, 100))
    params = {"norm": {"averages": jnp.zeros(3), "scale": jnp.zeros(3)}}

    def loss(params, batch, rng, frozen):
        norm = params["norm"]
        return (norm["scale"] - SIDE_GRADIENT * batch * norm["averages"]).sum(), jnp.float32(1), {}

    state = TrainState.create(params, optimizer, jax.random.key(0), lowers_rate=True)
    step = jit_step(loss, optimizer)
    state, _ = step(state.replace(rate=jnp.float32(0.25)), jnp.float32(3))
    np.testing.assert_allclose(state.params["norm"]["scale"], [-0.25] * 3)
    np.testing.assert_allclose(state.params["norm"]["averages"], [0.3] * 3, rtol=1e-6)


def loss_of_scaled_gradient(params, batch, rng, frozen):
    """Loss whose gradient has the norm `batch`."""
    grad = jnp.array([0.6, 0.8])
    return batch * (params["w"] @ grad), jnp.float32(1), {"tokens": jnp.float32(1)}


@cache
def step_with_spikes(factor, **options):
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.0, 100))
    return optimizer, jit_step(loss_of_scaled_gradient, optimizer, spike_factor=factor, **options)


class TestSpikes:
    def run(self, scales, factor=3.0, **options):
        """(state, sums) of steps whose gradients have these norms."""
        optimizer, step = step_with_spikes(factor, **options)
        create = partial(TrainState.create, detects_spikes=True, keeps_average=bool(options))
        state = create({"w": jnp.ones(2)}, optimizer, jax.random.key(0))
        found = []
        for scale in scales:
            state, sums = step(state, jnp.float32(scale))
            found.append((state, jax.device_get(sums)))
        return found

    @pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}])
    @pytest.mark.parametrize("spike", [3.1, np.nan, np.inf])
    def test_a_spike_changes_only_the_number_of_the_step(self, spike, options):
        """That of the schedule, too: the last step has the last rate, however many are skipped."""
        (before, _), (after, sums) = self.run([1.0] * 25 + [spike], **options)[-2:]
        adam, schedule = before.opt_state
        opt_state = (adam, schedule._replace(count=np.int32(26)))
        expected = before.replace(step=np.int32(26), opt_state=opt_state)
        jax.tree.map(np.testing.assert_array_equal, after, expected)
        assert sums.pop("skipped") == 1
        assert not any(sums.values())

    def test_an_update_below_the_limit_is_applied(self):
        (before, _), (after, sums) = self.run([1.0] * 25 + [2.9])[-2:]
        assert sums["skipped"] == 0 and sums["grad_norm"] == pytest.approx(2.9)
        assert not np.array_equal(before.params["w"], after.params["w"])

    def test_the_first_twenty_are_skipped_only_if_not_finite(self):
        found = self.run([1.0, 50.0, np.nan, 1.0] + [1.0] * 15 + [60.0, 60.0])
        skipped = [sums["skipped"] for _, sums in found]
        assert [i for i, skip in enumerate(skipped) if skip] == [2, 20]

    def test_the_typical_norm_averages_about_a_hundred_steps(self):
        scales = np.random.default_rng(0).uniform(1, 2, 150)
        mean = 0.0
        for i, scale in enumerate(scales):
            mean += (scale - mean) / min(i + 1, 100)
        assert self.run(scales)[-1][0].typical_norm == pytest.approx(mean, rel=1e-5)
