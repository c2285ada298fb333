# SPDX-License-Identifier: Apache-2.0
"""Traces of some steps, and FLOPs counted by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.optimizer import stop_frozen_gradients
from transformer_jax.training.profiling import Profiler, count_products, step_products, utilization
from transformer_jax.training.state import TrainState

VOCAB_SIZES = {"source": 48, "target": 48}


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
    tied = {"model.tie_embeddings": "all"}
    vocab, d_model, d_ff, rows, length = 48, 16, 32, 4, 48
    task = build.build_task(read_settings(tiny_config(tied)), VOCAB_SIZES, None)
    params = jax.eval_shape(task.init, jax.random.key(0))
    batch = batch_shapes(task.lengths, rows)
    loss = lambda params, batch: task.loss(params, batch, None, {})[0]  # noqa: E731
    found = count_products(jax.grad(loss), params, batch).flops
    state = TrainState(None, params, (), None)
    assert step_products(task, state, batch).flops == found

    with_r_drop = read_settings(tiny_config(tied | {"train.r_drop": 5.0}))
    twice = build.build_task(with_r_drop, VOCAB_SIZES, None)
    assert step_products(twice, state, batch).flops == 2 * found

    attention, feed_forward = 4 * d_model**2, 2 * d_model * d_ff
    matrices = 3 * attention + 2 * feed_forward + vocab * d_model
    weighing = 3 * 2 * 2 * length * d_model  # weights and values of three attentions, forward
    assert found == rows * length * (6 * matrices + 3 * weighing)


@pytest.mark.parametrize("changes", [{"optimizer.frozen": "encoder|embedding"}, {"lora.rank": 2}])
def test_what_is_frozen_has_no_flops_in_the_backward_pass(tiny_config, changes):
    """As in the derivative that JAX makes."""
    settings = read_settings(tiny_config(changes))
    task = build.build_task(settings, VOCAB_SIZES, None)
    engine = build.build_engine(settings)
    _, _, init_state = build.build_training(settings, task, engine)
    state = jax.eval_shape(init_state, 0)
    batch = batch_shapes(task.lengths, 4)
    frozen = settings.optimizer.frozen

    def loss(params, batch, frozen_trees):
        params = params if frozen is None else stop_frozen_gradients(frozen, params)
        model_params = state.replace(frozen=frozen_trees).with_base(params)
        return task.loss(model_params, batch, None, frozen_trees)[0]

    arguments = (state.params, batch, state.frozen)
    gradients = jax.make_jaxpr(jax.grad(loss))(*arguments)
    needed, _ = dce_jaxpr(gradients.jaxpr, [True] * len(gradients.jaxpr.outvars), True)
    compute = jaxpr_as_fun(ClosedJaxpr(needed, gradients.consts))
    both = count_products(compute, *jax.tree.leaves(arguments)).flops
    forward = count_products(loss, state.params, batch, state.frozen).flops
    assert step_products(task, state, batch, frozen).flops == both < 2.5 * forward


def test_devices_that_replicas_leave_idle_do_no_work(monkeypatch):
    """XLA counts the FLOPs of one device."""
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    executable = SimpleNamespace(cost_analysis=lambda: {"flops": 10.0})
    mesh = make_mesh(ParallelConfig(), jax.devices()[:1])
    step = SimpleNamespace(executable=executable)
    assert utilization(6, "float32", step, mesh)(0.5) == {"xla_flops_per_s": 20.0}
    monkeypatch.setattr("transformer_jax.training.profiling.peak_flops", lambda *_: 24.0)
    assert utilization(6, "float32", step, mesh)(0.5) == {"mfu": 0.5, "xla_flops_per_s": 20.0}
