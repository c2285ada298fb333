"""What a model computes at its places while it reads one example."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.analysis.reading import Reading
from transformer_jax.inference.batches import taken_back
from transformer_jax.models.apply import apply
from transformer_jax.nn.places import Place, each_place, matches
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.runtime import platform

LOGITS = "logits"
"""The name under which the model's own output is collected."""


def collect(
    model: Any, params: Any, reading: Reading, patterns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Values in one pass, by place, without batch and padding; float32.

    Args:
      model: takes `reading.inputs`.
      params: of the model, on the devices that compute.
      reading: the example.
      patterns: of the places (`nn.places`), such as "**.weights". The model's output comes with
        them, as `LOGITS`.
    """
    program, axes = _program(model, tuple(patterns))
    rows = round_up_rows(1, params)
    inputs = jax.tree.map(lambda x: np.repeat(x, rows, axis=0), reading.inputs)
    found = taken_back(program(params, place_like(params, inputs)), 1)
    return {path: _cut(path, value[0], axes, reading) for path, value in found.items()}


@functools.lru_cache(maxsize=16)
def _program(
    model: Any, patterns: tuple[str, ...]
) -> tuple[Callable[..., dict[str, jax.Array]], dict[str, tuple[str, ...]]]:
    """A compiled program for the values, and their axes, which are known once it was traced."""
    axes: dict[str, tuple[str, ...]] = {LOGITS: ("position",)}

    def collected(params: Any, inputs: Sequence[jax.Array]) -> dict[str, jax.Array]:
        found: dict[str, jax.Array] = {}

        def keep(place: Place, x: jax.Array) -> jax.Array:
            axes[place.path], found[place.path] = place.axes, x.astype(jnp.float32)
            return x

        with each_place(keep, lambda path: any(matches(one, path) for one in patterns)):
            logits = apply(model, params, *inputs)
        return found | {LOGITS: logits.astype(jnp.float32)}

    return jax.jit(collected, compiler_options=platform.compiler_options()), axes


def _cut(
    path: str, value: np.ndarray, axes: dict[str, tuple[str, ...]], reading: Reading
) -> np.ndarray:
    """Without padding."""
    for i, axis in enumerate(axes[path]):
        if axis in ("position", "query", "key"):
            count = len(reading.tokens[_stack(path, axis, reading)])
            value = value[(slice(None),) * i + (slice(count),)]
    return value


def _stack(path: str, axis: str, reading: Reading) -> str:
    """The stack whose tokens an axis counts."""
    if "cross_attention" in path and (axis == "key" or path.endswith((".keys", ".values"))):
        return "encoder"
    first = path.partition(".")[0].replace("source_positions", "encoder")
    return first if first in reading.tokens else reading.last_stack
