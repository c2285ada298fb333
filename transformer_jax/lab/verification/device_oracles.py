# SPDX-License-Identifier: Apache-2.0
"""Oracles of several devices: each division of the work gives the gradients of one device."""

from collections.abc import Callable, Mapping
from functools import partial

import jax

from transformer_jax.lab.verification.outcomes import Comparison, compare_trees
from transformer_jax.lab.verification.subject import Subject, first_gradients
from transformer_jax.parallel.sharding import AXIS_NAMES, DATA
from transformer_jax.runs import build

DEVICES = 2


def divided(subject: Subject, engine: str, axis: str) -> Comparison:
    """The gradients of two devices equal those of one.

    Args:
      engine: "pmap" or "jit".
      axis: axis of the mesh that has two devices; the others have one.
    """
    sizes = {f"parallel__{name}": DEVICES if name == axis else 1 for name in AXIS_NAMES}
    apart = subject.but(parallel__engine=engine, **sizes)
    engine_of_two = build.build_engine(apart.settings, jax.devices()[:DEVICES])
    return compare_trees(first_gradients(apart, engine_of_two), subject.gradients)


DEVICE_ORACLES: Mapping[str, Callable[[Subject], Comparison]] = {
    "pmap = one device": partial(divided, engine="pmap", axis=DATA),
    **{
        f"{axis} axis = one device": partial(divided, engine="jit", axis=axis)
        for axis in AXIS_NAMES
    },
}
"""Oracles by name; the process needs two devices."""
