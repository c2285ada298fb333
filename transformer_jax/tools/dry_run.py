# SPDX-License-Identifier: Apache-2.0
"""Dry run: parameters, batch and memory of a training step, before anything is trained."""

import jax

from transformer_jax.data.sources import find_sets
from transformer_jax.lab.plan.program import abstract_training, memory_of
from transformer_jax.lab.plan.target import GIB
from transformer_jax.runs.settings import Settings


def describe(settings: Settings) -> str:
    """Text with a summary, the arrays of a batch and the parameters.

    Raises:
      UserError: the config cannot be used on the devices that are here.
    """
    find_sets(settings.data.name)  # the data are not read here, but their sets must exist
    training = abstract_training(settings)
    _, peak = memory_of(training.compile())
    leaves = jax.tree_util.tree_leaves_with_path(training.state.params)
    size = sum(leaf.size for _, leaf in leaves)
    devices = training.engine.mesh.devices.flatten()
    most = " at most, by the size of the data" if settings.train.scale_to_data else ""
    summary = {
        "task": f"{settings.task.name} on {settings.data.name}",
        "model": settings.model.architecture,
        "parameters": f"{size:,}",
        "batch": f"{training.rows} rows, at most {settings.train.tokens_per_batch:,} tokens a side",
        "steps": f"{settings.train.num_steps:,}{most}",
        "devices": f"{devices.size} ({devices[0].device_kind})",
        "memory of a step": f"{peak / GIB:.2f} GiB a device (state, batch and temporaries)",
    }
    lines = [f"{name:17} {value}" for name, value in summary.items()]
    lines.append("")
    lines += [f"batch {name:58}{x.shape!s:>18}" for name, x in training.batch.items()]
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        lines.append(f"{name:64}{leaf.shape!s:>18}{leaf.size:>14,}")
    return "\n".join(lines)
