"""Adam and its schedules, against their formulas written out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule

D_MODEL = 64


def train(config, params, gradients):
    """The parameters after each update."""
    optimizer = make_optimizer(config, make_schedule(config, D_MODEL))
    state, history = optimizer.init(params), []
    for grads in gradients:
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history


def adam(param, gradients, rates, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """Kingma and Ba (2015), algorithm 1, with the learning rate of each update."""
    mean, square, history = np.zeros_like(param), np.zeros_like(param), []
    for n, (grad, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        mean = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad**2
        corrected_mean, corrected_square = mean / (1 - beta1**n), square / (1 - beta2**n)
        param = param - rate * corrected_mean / (np.sqrt(corrected_square) + epsilon)
        history.append(param)
    return history


def paper_rate(n, warmup_steps, factor=1.0):
    """Equation 3 at update n, counted from 1."""
    return factor * D_MODEL**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


@pytest.fixture
def gradients():
    return np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)


def test_three_updates_are_adam_with_the_papers_schedule(gradients):
    start = np.ones((2, 5), np.float32)
    history = train(OptimizerConfig(warmup_steps=2), jnp.asarray(start), gradients)
    expected = adam(start, gradients, [paper_rate(n, 2) for n in (1, 2, 3)])
    for got, want in zip(history, expected, strict=True):
        np.testing.assert_allclose(got - start, want - start, rtol=1e-4)


def test_betas_and_epsilon_are_those_of_the_config(gradients):
    config = OptimizerConfig(warmup_steps=1, beta1=0.5, beta2=0.7, epsilon=0.3)
    start = np.zeros((2, 5), np.float32)
    expected = adam(start, gradients, [paper_rate(n, 1) for n in (1, 2, 3)], 0.5, 0.7, 0.3)
    np.testing.assert_allclose(
        train(config, jnp.asarray(start), gradients)[-1], expected[-1], rtol=1e-4
    )


def test_clipping_bounds_the_global_norm_before_adam(gradients):
    norms = np.sqrt((gradients**2).sum(axis=(1, 2)))
    limit = float(np.median(norms))
    clipped = gradients * np.minimum(1, limit / norms)[:, None, None]
    assert (clipped != gradients).any(axis=(1, 2)).tolist() == (norms > limit).tolist()
    start, plain = np.zeros((2, 5), np.float32), OptimizerConfig(warmup_steps=1)
    config = OptimizerConfig(warmup_steps=1, clip_norm=limit)
    # Two leaves: the norm is that of both together.
    split = [(grads[0], grads[1]) for grads in gradients]
    got = train(config, (jnp.asarray(start[0]), jnp.asarray(start[1])), split)[-1]
    want = train(plain, jnp.asarray(start), clipped)[-1]
    np.testing.assert_allclose(np.stack(got), want, rtol=1e-5)
    assert not np.allclose(want, train(plain, jnp.asarray(start), gradients)[-1], rtol=1e-2)


def test_adamw_decays_matrices_alone():
    config = OptimizerConfig(name="adamw", weight_decay=0.1, warmup_steps=1)
    params = {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full(3, 2.0), "scale": jnp.full((), 2.0)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    (decayed,) = train(config, params, [zeros])
    rate = paper_rate(1, 1)
    np.testing.assert_allclose(decayed["kernel"], 2.0 * (1 - rate * 0.1), rtol=1e-6)
    np.testing.assert_array_equal(decayed["bias"], params["bias"])
    np.testing.assert_array_equal(decayed["scale"], params["scale"])


def test_the_schedule_is_that_of_the_config():
    def rates(**options):
        schedule = make_schedule(OptimizerConfig(warmup_steps=4, **options), D_MODEL)
        return [float(schedule(n - 1)) for n in (1, 4, 16)]

    paper = [paper_rate(n, 4, factor=2.0) for n in (1, 4, 16)]
    np.testing.assert_allclose(rates(learning_rate=2.0), paper, rtol=1e-5)
    inverse_sqrt = rates(schedule="inverse_sqrt", learning_rate=0.4)
    np.testing.assert_allclose(inverse_sqrt, [0.1, 0.4, 0.2], rtol=1e-5)
    constant = rates(schedule="constant", learning_rate=0.4)
    np.testing.assert_allclose(constant, [0.1, 0.4, 0.4], rtol=1e-5)
    for name, early in (("cosine", 0.4 * (1 + 0.5**0.5) / 2), ("linear", 0.3)):
        schedule = make_schedule(
            OptimizerConfig(schedule=name, learning_rate=0.4, warmup_steps=4, decay_steps=12),
            D_MODEL,
        )
        found = [schedule(count) for count in (3, 5, 7, 11)]
        np.testing.assert_allclose(found, [0.4, early, 0.2, 0.0], atol=1e-6)


def test_adafactor_scales_by_rows_columns_and_size():
    """Shazeer and Stern (2018), algorithm 4, first update: there beta2 is 0."""
    rng = np.random.default_rng(0)
    param, grad = rng.normal(size=(2, 40, 48)).astype(np.float32)
    config = OptimizerConfig(name="adafactor", warmup_steps=1)
    (after,) = train(config, {"kernel": jnp.asarray(param)}, [{"kernel": jnp.asarray(grad)}])
    square = grad**2
    estimate = square.mean(1, keepdims=True) * square.mean(0) / square.mean()
    update = grad / np.sqrt(estimate)
    update /= max(1.0, np.sqrt((update**2).mean()))
    expected = param - paper_rate(1, 1) * np.sqrt((param**2).mean()) * update
    np.testing.assert_allclose(after["kernel"], expected, rtol=1e-4, atol=1e-5)


def test_adafactor_keeps_less_than_a_matrix_for_a_matrix():
    def kept(name):
        config = OptimizerConfig(name=name)
        optimizer = make_optimizer(config, make_schedule(config, D_MODEL))
        params = {"kernel": jnp.zeros((256, 4, 64)), "bias": jnp.zeros(64)}
        return sum(leaf.size for leaf in jax.tree.leaves(optimizer.init(params)))

    assert kept("adam") > 2 * 256 * 4 * 64
    assert kept("adafactor") < 0.05 * 256 * 4 * 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "sgd"}, "name is 'sgd', not one of adam, adamw, adafactor"),
        ({"schedule": "step"}, "schedule is 'step', not one of transformer"),
        ({"learning_rate": 0.0}, "learning_rate and warmup_steps must be positive"),
        ({"warmup_steps": 0}, "learning_rate and warmup_steps must be positive"),
        ({"schedule": "cosine"}, "'cosine' asks for decay_steps beyond warmup_steps"),
        ({"schedule": "linear", "decay_steps": 4000}, "'linear' asks for decay_steps beyond"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0; it must lie in"),
        ({"ema_decay": 0.0}, "ema_decay is 0.0; it must lie in"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; it must be positive, or None"),
        ({"weight_decay": 0.1}, "weight_decay asks for name 'adamw'"),
    ],
)
def test_a_choice_without_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**options)
