# SPDX-License-Identifier: Apache-2.0
"""The engine for scanned layers: stacked in the step, separate in the portable state."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import STACKED
from transformer_jax.parallel import sharding
from transformer_jax.parallel.engines import JitEngine, PmapEngine
from transformer_jax.parallel.replicas import ReplicaEngine
from transformer_jax.parallel.scan_engine import ScanEngine
from transformer_jax.parallel.sharding import ParallelConfig, make_mesh


@pytest.fixture
def mesh():
    return make_mesh(ParallelConfig(engine="jit"), jax.devices()[:1])


class State(struct.PyTreeNode):
    """The fields of a training state that the engine reads."""

    step: jax.Array
    params: dict


def state_of(layers, mesh, replicas=()):
    """A state with a different kernel in each layer, sharded as in training."""
    kernels = np.arange(layers * 12, dtype=np.float32).reshape(layers, 4, 3)
    params = {
        f"layer_{i}": {"inner": {"kernel": np.broadcast_to(kernel, (*replicas, 4, 3))}}
        for i, kernel in enumerate(kernels)
    }
    state = State(step=np.zeros(replicas, np.int32), params={"encoder": params})
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
    stacked = ScanEngine(engine, engine.lead_axes) if replicas else ScanEngine(engine)
    state = state_of(3, mesh, replicas)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    batch = {"x": jax.ShapeDtypeStruct((2,), jnp.float32)}
    own, sums = stacked.compile(add_layers, abstract, batch)(
        stacked.from_portable(state), {"x": np.zeros(2, np.float32)}
    )
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
    state = sharding.add_shardings(
        State(step=jax.ShapeDtypeStruct((), jnp.int32), params=params), mesh
    )
    batch = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}

    def step(state, batch):
        return state, {"y": Stack().apply({"params": state.params}, batch["x"]).sum()}

    with pytest.raises(UserError, match=r"config\.model\.scan_layers: a stack of this archit"):
        ScanEngine(JitEngine(mesh)).compile(step, state, batch)
