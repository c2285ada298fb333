# SPDX-License-Identifier: Apache-2.0
"""Modules applied as one program; eagerly each operation compiles a program of its own."""

from functools import partial

import jax
import numpy as np


def apply(module, *args, **kwargs):
    """Returns `module.apply(*args, **kwargs)`.

    Arrays are arguments of the program; names, hooks and numbers are part of it. Each call traces
    anew, so that hooks and devices of the moment are those of the program.
    """
    return run(module.apply, *args, **kwargs)


def run(function, *args, **kwargs):
    """Returns `function(*args, **kwargs)`, compiled as one program in the same way.

    Results are NumPy arrays: what a test reads of them compiles nothing, either.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray | jax.Array)}

    def program(arrays):
        inputs = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(structure, inputs)
        return function(*args, **kwargs)

    return jax.device_get(jax.jit(program)(arrays))


def decode(model, variables, prompt, lengths, following, max_length=8):
    """Returns logits after prompts of these lengths and after each of the following tokens
    [steps, N], and the last state. The prompts are prefilled together."""
    prefill = jax.jit(partial(model.apply, method="prefill"), static_argnums=3)
    step = jax.jit(partial(model.apply, method="decode_step"))
    logits, memory, state = prefill(variables, np.asarray(prompt), np.asarray(lengths), max_length)
    results = [logits]
    for tokens in following:
        logits, state = step(variables, np.asarray(tokens), memory, state)
        results.append(logits)
    return results, state


def assert_near(found, expected, tolerance=1e-6):
    """Trees are equal up to this share of the largest element of each array."""

    def compare(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())

    jax.tree.map(compare, found, expected)
