# SPDX-License-Identifier: Apache-2.0
"""Dry run: parameters, batch and memory of a training step, before anything is trained."""

import jax
from ml_collections import ConfigDict

from transformer_jax.data.sources import find_sets
from transformer_jax.runs.config import read_settings
from transformer_jax.tools.plan.program import abstract_training, memory_of
from transformer_jax.tools.plan.target import GIB


def describe(config: ConfigDict) -> str:
    """Text with the parameters, the arrays of a batch and the memory of a training step.

    Raises:
      UserError: the config cannot be used on the devices that are here.
    """
    settings = read_settings(config)
    find_sets(settings.data.name)  # the data are not read here, but their sets must exist
    training = abstract_training(settings)
    _, peak = memory_of(training.compile())
    leaves = jax.tree_util.tree_leaves_with_path(training.state.params)
    table = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), str(leaf.shape), leaf.size)
        for path, leaf in leaves
    ]
    lines = [f"{path:64}{shape:>18}{size:>14,}" for path, shape, size in table]
    lines.append(f"{'parameters':64}{'':18}{sum(size for *_, size in table):>14,}")
    lines += [f"batch {name:58}{x.shape!s:>18}" for name, x in training.batch.items()]
    lines.append(
        f"memory of a step: {peak / GIB:.2f} GiB on each of {training.engine.mesh.size} devices "
        "(state, batch and temporaries)"
    )
    return "\n".join(lines)
