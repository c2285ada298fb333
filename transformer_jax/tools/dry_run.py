"""Memory that training a config takes, before anything is trained."""

from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tasks.losses import batch_shapes


def describe(config: ConfigDict) -> str:
    """The parameters, the arrays of a batch and the memory of a training step, as text.

    Raises:
      UserError: the config cannot be used on the devices that are here.
    """
    settings = read_settings(config)
    task = build.build_task(settings, build.assumed_vocab_sizes(settings), tokenizers=None)
    engine = build.build_engine(settings)
    _, train_step, init_state = build.build_training(settings, task, engine)
    state = build.abstract_state(settings, init_state, engine.mesh)
    batch = batch_shapes(task.lengths, build.batch_rows(settings, task, engine.row_shards))
    memory: Any = engine.compile(train_step, state, batch).executable.memory_analysis()
    held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    table = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), str(leaf.shape), leaf.size)
        for path, leaf in leaves
    ]
    lines = [f"{path:64}{shape:>18}{size:>14,}" for path, shape, size in table]
    lines.append(f"{'parameters':64}{'':18}{sum(size for *_, size in table):>14,}")
    lines += [f"batch {name:58}{x.shape!s:>18}" for name, x in batch.items()]
    lines.append(
        f"memory of a step: {held / 2**30:.2f} GiB on each of {engine.mesh.size} devices "
        "(state, batch and what XLA needs besides)"
    )
    return "\n".join(lines)
