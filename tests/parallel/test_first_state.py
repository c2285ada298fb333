# SPDX-License-Identifier: Apache-2.0
"""The first state: bits of the whole program, from few small ones."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.parallel import sharding
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import ParallelConfig

SCALES = np.linspace(1, 2, 3, dtype=np.float32)


@jax.jit
def init(seed):
    keys = jax.random.split(jax.random.key(seed), 6)
    kernels = [jax.random.normal(key, (8, 3)) for key in keys]
    kernels[3] *= 0.0  # the number is all that differs from the next one
    kernels[4] *= -0.0
    kernels[5] *= SCALES
    biases = [jnp.zeros(3) for _ in kernels]
    return {"params": (kernels, biases), "live": kernels, "seed": seed, "norm": kernels[0].sum()}


def abstract_of(init, seed):
    return sharding.add_shardings(jax.eval_shape(init, seed), sharding.make_mesh(ParallelConfig()))


def assert_same_bits(state, expected):
    jax.tree.map(
        lambda *leaves: np.testing.assert_array_equal(*[leaf.view(np.int32) for leaf in leaves]),
        jax.device_get(state),
        jax.device_get(expected),
    )


def test_a_program_for_each_kind_of_leaf_gives_the_bits_of_the_whole():
    assert_same_bits(create_state(init, 7, abstract_of(init, 7)), init(7))


def test_replicas_have_the_bits_of_their_seeds_in_one_program():
    seeds = np.array([3, 5])
    states = jax.jit(jax.vmap(init))(seeds)
    assert_same_bits(create_state(init, seeds, abstract_of(jax.vmap(init), seeds)), states)


def test_leaves_that_are_loaded_are_not_computed():
    @jax.jit
    def init(seed):
        return {"base": {"w": jax.random.normal(jax.random.key(seed), (8, 8))}, "b": seed + 1.0}

    abstract = abstract_of(init, 7)
    made = create_state(init, 7, abstract, lambda path: path == "base/w")
    assert made["base"]["w"] is abstract["base"]["w"] and made["b"] == 8.0
