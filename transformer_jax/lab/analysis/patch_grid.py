# SPDX-License-Identifier: Apache-2.0
"""Activation patching over a grid (Meng et al. 2022): each layer and position in turn, in one
program.

B cells of the grid in a batch, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from transformer_jax.errors import UserError
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.lab.analysis.activations import stack_of
from transformer_jax.models import apply_model
from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches_pattern
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runs.run import Run
from transformer_jax.runtime import platform
from transformer_jax.suggestions import suggest

CELLS = 64
"""Cells that are computed together."""

Measure = Callable[[Float[Array, "T V"]], Float[Array, ""]]
"""Logits of the last stack's tokens -> a number."""


def patch_grid(
    run: Run,
    source: str,
    target: str | None,
    pattern: str,
    change: ArrayLike,
    measure: Measure | None = None,
) -> Float[np.ndarray, "L T"]:
    """Measures of the example with each position of each hook point changed in turn.

    Args:
      source, target: as of `attention`.
      pattern: pattern of L hook points (`nn.hooks`) whose first axis is "position", such as
        "encoder.layer_*".
      change: an array [L, T, ...], whose [l, t] replaces the value at point l and position t, such
        as streams of another input; or a number that scales it, 0 to switch it off.
      measure: None: log P(target) of a task on pairs, in nats.

    Raises:
      UserError: no hook point matches, one has no positions, they are of stacks of different
        lengths, the array has another shape, or a task without targets has no measure.
    """
    points = run.hook_points
    paths = [path for path in points if matches_pattern(pattern, path)]
    if not paths:
        hint = suggest(pattern, points)
        raise UserError(f"patch_grid: the model has no hook point {pattern}{hint}")
    for path in paths:
        axes = list(points[path])
        if axes[0] != "position":
            raise UserError(f"patch_grid: {path} has no position first, but {', '.join(axes)}")
    reading = run.model_inputs(source, target)
    lengths = {len(reading.tokens[stack_of(path, "position", reading)]) for path in paths}
    if len(lengths) > 1:
        counts = " and ".join(map(str, sorted(lengths)))
        raise UserError(
            f"patch_grid: {pattern} has points of stacks of {counts} tokens; take one stack"
        )
    length = lengths.pop()
    sizes = tuple(points[paths[0]].values())[1:]
    if np.ndim(change) and np.shape(change) != (len(paths), length, *sizes):
        raise UserError(
            f"patch_grid: an array of shape {np.shape(change)} does not fit; {pattern} takes "
            f"{(len(paths), length, *sizes)}"
        )
    program = _program(run.model, paths, measure or _log_prob_of(reading), reading)
    cells = np.array([*np.ndindex(len(paths), length)], np.int32)
    rows = round_up_rows(min(CELLS, len(cells)), run.params)
    inputs = place_like(run.params, [np.repeat(x, rows, axis=0) for x in reading.inputs])
    values = jnp.asarray(change)
    batches = np.resize(cells, (-(-len(cells) // rows), rows, 2))  # the last one is filled up
    measures = [
        hosts.to_host(program(run.params, inputs, values, place_like(run.params, batch)))
        for batch in batches
    ]
    return np.concatenate(measures)[: len(cells)].reshape(len(paths), length)


def _program(
    model: Any, paths: Sequence[str], measure: Measure, reading: ModelInputs
) -> Callable[..., Array]:
    """Compiles (params, inputs, change, cells [B, 2]) -> measures [B], one changed cell a row."""

    def measures(params: Any, inputs: Sequence[Array], change: Array, cells: Array) -> Array:
        point_of_row, position_of_row = cells.T

        def patch(point: HookPoint, x: Array) -> Array:
            index = paths.index(point.path)
            is_changed = point.positions["position"] == position_of_row[:, None]
            is_changed &= (point_of_row == index)[:, None]
            is_changed = is_changed.reshape(is_changed.shape + (1,) * (x.ndim - 2))
            if change.ndim:  # values to put in
                value = change[index, position_of_row][:, None]
            else:  # a factor: 0 gives the value of a point that is switched off
                value = point.off_value + change * (x - point.off_value)
            return jnp.where(is_changed, value, x)

        with intercept_activations(patch, paths.__contains__):
            logits = apply_model(model, params, *inputs).astype(jnp.float32)
        return jax.vmap(measure)(logits[:, : len(reading.tokens[reading.last_stack])])

    return jax.jit(measures, compiler_options=platform.compiler_options())


def _log_prob_of(reading: ModelInputs) -> Measure:
    if reading.outputs is None:
        raise UserError("patch_grid: this run's task has no target; give a measure of the logits")
    target = jnp.array(reading.outputs)

    def log_prob(logits: Array) -> Array:
        log_probs = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(log_probs, target[:, None], axis=1).sum()

    return log_prob
