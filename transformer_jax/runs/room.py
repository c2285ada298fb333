"""The memory that a training step needs, before any of it is allocated."""

import math
from typing import Any

import jax

from transformer_jax.parallel.interface import Engine
from transformer_jax.runs.config import Settings
from transformer_jax.runtime.memory import devices_that_share, require_memory
from transformer_jax.training.state import TrainState


def require_room(settings: Settings, state: TrainState, engine: Engine, largest: int) -> None:
    """Raises UserError where a training step cannot fit into memory.

    Args:
      settings: of the run.
      state: shapes with their shardings.
      engine: which divides state and rows.
      largest: bytes of the largest array that the forward pass of a micro-batch makes, on all
        devices together.
    """

    def size(tree: Any) -> int:
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(tree)
        )

    gradient, tokens = size(state.params), settings.train.tokens_per_batch
    part = largest * engine.num_replicas // engine.mesh.size
    require_memory(
        devices_that_share() * (size(state) + gradient + part),
        f"config: {sum(leaf.size for leaf in jax.tree.leaves(state.params)):,} parameters, with "
        f"gradients, optimizer and train.tokens_per_batch {tokens},",
    )
