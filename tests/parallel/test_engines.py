# SPDX-License-Identifier: Apache-2.0
"""Engines: loss and gradients of a step on eight devices equal those on one. Layers are stacked in
the step, and separate in the portable state."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import STACKED
from transformer_jax.parallel import engines, sharding
from transformer_jax.parallel.engines import JitEngine, PmapEngine, ReplicaEngine, ScanEngine
from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.training.state import TrainState


@pytest.fixture(scope="module")
def results(eight_devices):
    return eight_devices["eight_devices"]


APART = [
    ("apart", "two slices"),  # with the dropout of one device
    ("jax.pmap", "pmap 8"),  # with dropout, which each device draws: equal to `jax.pmap`
    ("apart", "pmap 8"),  # with batch norm, which is that of all rows
    ("kernel", "2 x 2 x 2"),  # with batch norm, tiles of a sharded vocabulary and a kernel
]


def test_loss_and_gradient_equal_those_of_one_device(results):
    for runs, layout in APART:
        distances = results[runs][layout]
        assert distances["loss"] < 1e-5 and distances["gradient"] < 1e-5, (runs, layout)
    assert results["own part"] == [16 // 4, 4 // 2]  # rows and heads that the kernel got


def test_diagnostics_under_pmap_are_those_of_one_device(results):
    """With batch norm, whose statistics need all rows."""
    found, alone = results["gradient norms"]
    assert found == pytest.approx(alone, rel=1e-4)


def test_adapters_train_under_pmap_as_on_one_device(results):
    """In two micro-batches."""
    alone, losses = (results["adapters"][layout] for layout in ("one", "pmap 8"))
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    assert losses[2] < losses[0]
    assert results["micro-batches"] == [2, 2]  # also if their rows are given


def test_hardware_bits_differ_by_rows(results):
    """Devices with different rows draw different bits; devices that share rows draw the same."""
    assert results["hardware"] == {"distinct": 16, "agree": True}


@pytest.mark.parametrize("layout", ["two slices", "pmap 8"])
def test_losses_of_twenty_steps_equal_those_of_one_device(results, layout):
    losses, alone = (results[of][layout] for of in ("losses", "losses of one"))
    assert alone[-1] < alone[0] - 0.3  # it learns
    assert losses == pytest.approx(alone, rel=1e-4)


def test_the_first_state_is_that_of_one_device_and_sharded(results):
    assert results["created"] < 1e-6
    assert results["share"]["fsdp 8"] == pytest.approx(1 / 8, abs=0.005)
    assert results["share"]["pmap 8"] == 1
    assert results["share with adapters"] < 0.2  # adapters and their base are divided


@pytest.mark.parametrize("layout", ["pmap 4", "expert 2, sequence 2, tensor 2"])
def test_experts_on_several_devices_equal_those_on_one(results, layout):
    """In parameters, biases and records."""
    divided = results["experts"][layout]
    assert divided["params"] < 5e-6 and all(divided["counters"]) and all(divided["moved"])
    assert all(distance < 1e-5 for distance in divided["metrics"].values())
    assert divided["values"]["aux/balance"] > 0.5


def test_an_axis_that_does_not_divide_the_experts_is_refused(results):
    assert "expert 2 does not divide" in results["refusal"]
    assert "make the 3 a multiple of 2" in results["refusal"]


def test_pmap_only_divides_rows():
    shape = {"data": 4, "fsdp": 2, "tensor": 1}
    mesh = SimpleNamespace(size=8, shape=shape, devices=np.array(jax.devices()[:1]))
    with pytest.raises(ValueError, match="set engine to 'jit'"):
        engines.make_engine(ParallelConfig("pmap"), mesh)


@pytest.fixture
def mesh():
    return make_mesh(ParallelConfig(engine="jit"), jax.devices()[:1])


def state_of(layers, mesh, replicas=()):
    """A state with a different kernel in each layer, sharded as in training."""
    kernels = np.arange(layers * 12, dtype=np.float32).reshape(layers, 4, 3)
    params = {
        f"layer_{i}": {"inner": {"kernel": np.broadcast_to(kernel, (*replicas, 4, 3))}}
        for i, kernel in enumerate(kernels)
    }
    state = TrainState(np.zeros(replicas, np.int32), {"encoder": params}, (), None)
    shardings = jax.tree.map(
        lambda x: x.sharding, sharding.add_shardings(jax.eval_shape(lambda: state), mesh)
    )
    own = NamedSharding(mesh, PartitionSpec("data"))
    return jax.device_put(state, own if replicas else shardings)


def add_layers(state, batch, numbers=None):
    kernels = state.params["encoder"][STACKED]["inner"]["kernel"]
    return state.replace(params=jax.tree.map(lambda x: 2 * x, state.params)), {
        "sums": kernels.sum((1, 2)) + batch["x"].sum()
    }


@pytest.mark.parametrize(
    ("engine_class", "replicas"), [(JitEngine, ()), (PmapEngine, ()), (ReplicaEngine, (2,))]
)
def test_layers_are_stacked_only_in_the_step(mesh, engine_class, replicas):
    engine = ReplicaEngine(mesh, 2, same_batch=True) if replicas else engine_class(mesh)
    stacked = ScanEngine(engine)
    state = state_of(3, mesh, replicas)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    batch = {"x": np.zeros(2, np.float32)}
    step = stacked.compile(add_layers, abstract, jax.eval_shape(lambda: batch))
    own, sums = step(stacked.from_portable(state), batch)
    assert own.params["encoder"][STACKED]["inner"]["kernel"].shape == (*replicas, 3, 4, 3)
    assert sums["sums"].shape == (*replicas, 3)
    doubled = stacked.to_portable(own)
    assert jax.tree.structure(doubled) == jax.tree.structure(state)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, 2 * b), doubled.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, stacked.to_portable(own.params), doubled.params)


def test_the_axis_of_layers_is_not_divided(mesh):
    own = ScanEngine(JitEngine(mesh)).from_portable(state_of(3, mesh))
    kernel = own.params["encoder"][STACKED]["inner"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec(None, "fsdp", "tensor")


def test_a_stack_without_scanned_layers_is_refused(mesh):
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(2):
                x = nn.Dense(4, name=f"layer_{i}")(x)
            return x

    x = np.ones((1, 4), np.float32)
    params = jax.eval_shape(Stack().init, jax.random.key(0), x)["params"]
    abstract = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, (), None)
    state = sharding.add_shardings(abstract, mesh)
    batch = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}

    def step(state, batch):
        return state, {"y": Stack().apply({"params": state.params}, batch["x"]).sum()}

    with pytest.raises(UserError, match=r"config\.model\.scan_layers: a stack of this archit"):
        ScanEngine(JitEngine(mesh)).compile(step, state, batch)
