# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of programs: equal after refactorings, other after a change of what is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from transformer_jax.parallel.program_fingerprint import program_fingerprint

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


def fingerprint(step, *shapes):
    shapes = shapes or ((3, 4), (4, 4), (3, 4))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return program_fingerprint(jax.jit(step).lower(*arrays))


def gradient(loss):
    return lambda x, w, bias: jax.grad(loss, 1)(x, w, bias)


@gradient
def step(x, w, bias):
    hidden = jnp.tanh(x @ w)
    scale = jnp.exp(bias) + TABLE

    def layer(carry, row):
        state, total = carry
        return (state * row + hidden[0], total + state.sum()), state

    (_, total), states = lax.scan(layer, (hidden[0], 0.0), scale)
    return total + jnp.where(states > 0, states, 0.1 * hidden).mean()


@jax.jit
def activated(inputs, weights):
    return jnp.tanh(inputs @ weights)


def layer_of(hidden):
    def layer(carry, row):
        state, total = carry
        return (state * row + hidden[0], total + state.sum()), state

    return layer


def scale_of(bias):
    return TABLE + jnp.exp(bias)


def rest(hidden, scale):
    (_, total), states = lax.scan(layer_of(hidden), (hidden[0], 0.0), scale)
    return jnp.where(states > 0, states, hidden * 0.1).mean() + total


REFACTORED = {
    "functions are renamed, split in two and compiled": gradient(
        lambda x, w, bias: jax.jit(rest)(activated(x, w), jax.jit(scale_of)(bias))
    ),
    "statements have another order": gradient(
        lambda x, w, bias: rest(scale=scale_of(bias), hidden=jnp.tanh(x @ w))
    ),
    "something has no reader": gradient(
        lambda x, w, bias: (jnp.sin(bias), rest(activated(x, w), scale_of(bias)))[1]
    ),
}


@pytest.mark.parametrize("name", REFACTORED)
def test_refactorings_leave_the_fingerprint(name):
    assert fingerprint(REFACTORED[name]) == fingerprint(step)


def test_carried_values_of_a_loop_have_no_order():
    def summed(x, turn, factor=2.0):
        def update(carry, row):
            state, total = carry[::-1] if turn else carry
            updated = (state * factor + row, total + state.sum())
            return (updated[::-1] if turn else updated), state

        start = (0.0, x[0]) if turn else (x[0], 0.0)
        carry, states = lax.scan(update, start, x)
        return (carry[::-1] if turn else carry), states

    of_three = [fingerprint(lambda x, a=a: summed(x, *a), (3, 4)) for a in [(0,), (1,), (0, 3.0)]]
    assert of_three[0] == of_three[1] != of_three[2]


def loop(x, body=lambda i, pair: (pair[0] * 2.0, pair[1] + pair[0]), count=3):
    return lax.fori_loop(0, count, body, (x, x))


def key_bits(x, index=0):
    return x + jax.random.normal(jax.random.split(jax.random.key(7))[index], x.shape)


def counted(x):
    jax.debug.callback(lambda value: None, x)
    return x


CHANGED = {
    "a constant": (lambda x: x * 2.0, lambda x: x * 2.001),
    "an entry of an array": (lambda x: x + TABLE[0], lambda x: x + np.array([0, 1, 2, 4.0], "f")),
    "an operation": (jnp.sin, jnp.cos),
    "operands of a difference": (lambda x: x - x.sum(), lambda x: x.sum() - x),
    "the grouping of a sum": (
        lambda x: x + (jnp.sin(x) + jnp.cos(x)),
        lambda x: (x + jnp.sin(x)) + jnp.cos(x),
    ),
    "an axis": (lambda x: x.sum(0), lambda x: x.sum(1)),
    "a type": (lambda x: x @ x, lambda x: x.astype("bfloat16") @ x.astype("bfloat16")),
    "a precision": (lambda x: x @ x, lambda x: jnp.matmul(x, x, precision="highest")),
    "a comparison": (lambda x: jnp.where(x > 0, x, 0), lambda x: jnp.where(x >= 0, x, 0)),
    "turns of a loop": (loop, lambda x: loop(x, count=4)),
    "the update of a loop": (loop, lambda x: loop(x, lambda i, pair: (pair[0] * 2.0, pair[0]))),
    "which result of a loop": (lambda x: loop(x)[0], lambda x: loop(x)[1]),
    "a random key": (key_bits, lambda x: key_bits(x, 1)),
    "a branch": (
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x.sum() > 0, jnp.cos, jnp.sin, x),
    ),
    "a gradient that stops": (
        lambda x: jax.grad(lambda y: (y * jnp.sin(y)).sum())(x),
        lambda x: jax.grad(lambda y: (y * lax.stop_gradient(jnp.sin(y))).sum())(x),
    ),
    "the order of results": (lambda x: (x, -x), lambda x: (-x, x)),
    "a callback": (counted, lambda x: x),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changes_change_the_fingerprint(name):
    before, after = CHANGED[name]
    assert fingerprint(before, (4, 4)) != fingerprint(after, (4, 4))


def test_shapes_and_the_order_of_arguments_count():
    product = fingerprint(jnp.matmul, (4, 4), (4, 4))
    assert product != fingerprint(jnp.matmul, (8, 4), (4, 4))
    assert product != fingerprint(lambda x, y: y @ x, (4, 4), (4, 4))


def test_what_each_device_computes_counts():
    """As in the step of the engine pmap; here for two devices."""
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((4,), jnp.float32)

    def of_each(function):
        divided = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        return program_fingerprint(jax.jit(divided).trace(x).lower(lowering_platforms=("cpu",)))

    assert of_each(lambda x: x + x) == of_each(lambda x: jnp.add(x, x)) != of_each(lambda x: x * x)


def test_callbacks_count_by_their_effect_not_by_their_number():
    assert fingerprint(counted, (4,)) == fingerprint(counted, (4,))
