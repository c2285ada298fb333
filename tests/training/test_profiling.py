# SPDX-License-Identifier: Apache-2.0
"""Traces of some steps, and FLOPs counted by hand."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp

from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.profiling import (
    Profiler,
    count_products,
    step_products,
    utilization,
)


def traces(directory):
    return list(directory.rglob("*.xplane.pb"))


def test_steps_are_traced_after_the_first_ten(tmp_path):
    profiler = Profiler(tmp_path, first=5, num_steps=2)
    for step in range(5, 17):
        profiler.before_step(step)
        (jnp.ones(3) + step).block_until_ready()
        assert not traces(tmp_path)
    profiler.before_step(17)
    assert len(traces(tmp_path)) == 1


def test_a_run_that_ends_early_still_has_its_trace(tmp_path):
    for num_steps in (0, 100):
        profiler = Profiler(tmp_path, first=1, num_steps=num_steps)
        for step in range(1, 13):
            profiler.before_step(step)
        for _ in range(2):
            profiler.close()
        assert len(traces(tmp_path)) == (num_steps > 0)


def test_products_are_counted_with_their_loops():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    assert count_products(jnp.dot, a, b).flops == 2 * 3 * 4 * 5

    def repeated(a, b):
        return jax.lax.scan(lambda total, _: (total + jnp.exp(a @ b).sum(), None), 0.0, length=7)

    assert count_products(jax.jit(lambda a, b: repeated(a, b)[0]), a, b).flops == 7 * 2 * 3 * 4 * 5
    assert count_products(jnp.add, a, a).flops == 0


def test_a_training_step_has_the_flops_of_the_textbook(tiny_config):
    """6 per parameter and token (Kaplan et al. 2020), and 12 T D per token for attention."""
    settings = read_settings(tiny_config({"model.tie_embeddings": "all"}))
    vocab, d_model, d_ff, rows, length = 48, 16, 32, 4, 48
    task = build.build_task(settings, {"source": vocab, "target": vocab}, None)
    params = jax.eval_shape(task.init, jax.random.key(0))
    batch = batch_shapes(task.lengths, rows)
    loss = lambda params, batch: task.loss(params, batch, None, {})[0]  # noqa: E731
    found = count_products(jax.grad(loss), params, batch).flops
    assert step_products(task, params, batch, {}).flops == found

    twice = build.build_task(
        dataclasses.replace(settings, train=dataclasses.replace(settings.train, r_drop=5.0)),
        {"source": vocab, "target": vocab},
        None,
    )
    assert step_products(twice, params, batch, {}).flops == 2 * found

    attention, feed_forward = 4 * d_model**2, 2 * d_model * d_ff
    matrices = 3 * attention + 2 * feed_forward + vocab * d_model
    weighing = 3 * 2 * 2 * length * d_model  # weights and values of three attentions, forward
    assert found == rows * length * (6 * matrices + 3 * weighing)


def test_devices_that_replicas_leave_idle_do_no_work(monkeypatch):
    """XLA counts the FLOPs of one device."""
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    executable = SimpleNamespace(cost_analysis=lambda: {"flops": 10.0})
    mesh = make_mesh(ParallelConfig(), jax.devices()[:1])
    rates = utilization(6, "float32", SimpleNamespace(executable=executable), mesh)(0.5)
    assert rates == {"xla_flops_per_s": 20.0}
