# SPDX-License-Identifier: Apache-2.0
"""Finds the layer of a model whose values are NaN or infinite."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.errors import UserError
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.models import apply_model
from transformer_jax.nn.hooks import HookPoint, intercept_activations
from transformer_jax.tasks.interface import Params

_NO_LAYERS = (".weights", ".logit_bias")
"""Ends of hook points that are no layer's values; masks may be infinite there."""


def nonfinite_parameters(params: Params) -> list[str]:
    """Names of the parameters that hold NaN or infinity."""
    flags = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.isfinite(x).all(), tree))(params)
    return [name for name, is_finite in named_leaves(flags).items() if not is_finite]


def first_nonfinite_layer(model: Any, params: Params, reading: ModelInputs) -> str | None:
    """The first hook point (`nn.hooks`) whose value is not finite; None if all are."""
    names: list[str] = []

    def run(params: Params, inputs: tuple[jax.Array, ...]) -> list[jax.Array]:
        flags: list[jax.Array] = []

        def keep(point: HookPoint, x: jax.Array) -> jax.Array:
            names.append(point.path)
            flags.append(jnp.isfinite(x).all())
            return x

        with intercept_activations(keep, lambda path: not path.endswith(_NO_LAYERS)):
            apply_model(model, params, *inputs)
        return flags

    flags = jax.jit(run)(params, reading.inputs)  # traced once, so `names` are in their order
    for name, is_finite in zip(names, flags, strict=True):
        if not is_finite:
            return name
    return None


def nonfinite_cause(run: Any, lines: Sequence[str]) -> str:
    """The parameter of a run, or the layer for one of the lines, as the end of a message; or ""."""
    if hasattr(run, "members"):  # an ensemble
        causes = {member.workdir: nonfinite_cause(member, lines) for member in run.members}
        return next((f" in {workdir}{cause}" for workdir, cause in causes.items() if cause), "")
    task = run.task
    params = run.params
    names = nonfinite_parameters(params)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f": so is the parameter {names[0]}{more}; take another checkpoint"
    model_inputs = getattr(task, "model_inputs", None)
    if model_inputs is None:
        return ""
    for line, target in itertools.product(lines, (None, "")):
        # Without a target, tasks on pairs search for one, which fails again.
        with contextlib.suppress(UserError):
            reading = model_inputs(params, line, target, run.settings.decode)
            layer = first_nonfinite_layer(task.model, params, reading)
            if layer:
                return f": so is {layer}, although all parameters are finite"
    return ""
