# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of training: norms by layer, entropy of attention, and dead hidden units.

A second program computes them from the state and the batch of a step, before that step.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches_pattern
from transformer_jax.nn.parameters import named_leaves
from transformer_jax.parallel.sharding import place_local_rows, row_shards
from transformer_jax.runtime import platform
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Batch, LossFn, Update

SPLIT = "watch"
"""Split of the records."""

_WEIGHTS = "**.weights"
_HIDDEN = "**.feed_forward.hidden"
_TOKENS = 2048  # per device, for attention and units: weights grow with the square of the length
_DEAD = 1e-3  # largest absolute value of a unit that counts as dead


Diagnose = Callable[[TrainState, Mapping[str, np.ndarray]], Mapping[str, Any]]
"""(portable state before a step, this process's rows of its batch) -> diagnostics by name, of a run
or of replicas."""


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Computes diagnostics of a run.

    Attributes:
      update: (state, batch, numbers) -> update of the next step (`training.step.compute_update`).
      loss: loss of the task; its forward pass gives attention weights and hidden units.
    """

    update: Callable[[TrainState, Batch, Mapping[str, Any]], Update]
    loss: LossFn
    mesh: Mesh

    def __call__(
        self,
        state: TrainState,
        rows: Mapping[str, np.ndarray],
        numbers: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, float]:
        """Computes diagnostics, named "kind/part", such as "grad/encoder/layer_0/self_attention".

        - "grad", "update" and "param": norms of the gradients, the update and the parameters of a
          part of the model.
        - "entropy": mean entropy of attention over queries and heads, in nats; "least_entropy":
          that of the head with the lowest.
        - "dead": share of a layer's hidden units whose absolute value is at most 0.001 for all
          tokens.

        Entropies and dead units are computed without dropout, in some rows of the batch.
        """
        batch = place_local_rows(rows, self.mesh)
        device = self.mesh.devices.flat[0]
        with platform.compiling_for(device), platform.sharded_over(self.mesh.size):
            figures = self._program(state, batch, dict(numbers))
        return {name: float(value) for name, value in jax.device_get(figures).items()}

    @functools.cached_property
    def _program(self) -> Callable[[TrainState, Batch, Any], dict[str, Array]]:
        def compute(state: TrainState, batch: Batch, numbers: Any) -> dict[str, Array]:
            update = self.update(state, batch, numbers)
            return norms(state, update) | self._activations(state, batch)

        return jax.jit(compute, compiler_options=platform.compiler_options())

    def _activations(self, state: TrainState, batch: Batch) -> dict[str, Array]:
        shards = row_shards(self.mesh)
        longest = max(x.shape[1] for x in jax.tree.leaves(batch))
        count = max(1, _TOKENS // longest)

        def first_rows(x: Array) -> Array:
            by_device = x.reshape(shards, -1, *x.shape[1:])
            return by_device[:, :count].reshape(-1, *x.shape[1:])

        figures: dict[str, Array] = {}

        def record(point: HookPoint, x: Array) -> Array:
            part = point.path.rpartition(".")[0].replace(".", "/")
            if matches_pattern(_WEIGHTS, point.path):
                by_head = entropies(x.astype(jnp.float32))
                figures[f"entropy/{part}"] = by_head.mean()
                figures[f"least_entropy/{part}"] = by_head.min()
            else:
                figures[f"dead/{part}"] = dead_share(x.astype(jnp.float32))
            return x

        def is_read(path: str) -> bool:
            return matches_pattern(_WEIGHTS, path) or matches_pattern(_HIDDEN, path)

        with intercept_activations(record, is_read):
            self.loss(state.model_params, jax.tree.map(first_rows, batch), None, state.frozen)
        return figures


def norms(state: TrainState, update: Update) -> dict[str, Array]:
    """Norms of gradients, updates and parameters by part of the model, {"grad/PART": scalar}."""
    trees = {"grad": update.grads, "update": update.updates, "param": state.trained}
    squares: dict[str, Array] = {}
    for name, tree in trees.items():
        for path, leaf in named_leaves(tree).items():
            key = f"{name}/{part_of(path)}"
            squares[key] = squares.get(key, 0.0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return {key: jnp.sqrt(total) for key, total in squares.items()}


def part_of(path: str) -> str:
    """Part of the model to which a parameter belongs: at most three names of its path.

    Example:
      >>> part_of("encoder/layer_0/self_attention/query/kernel")
      'encoder/layer_0/self_attention'
    """
    return "/".join(path.split("/")[:-1][:3]) or path


def entropies(weights: Float[Array, "B H T S"]) -> Float[Array, " H"]:
    """Entropy of each head's attention in nats, averaged over the queries that see a key."""
    sees_key = weights.sum(-1) > 0.5  # weights of padding are 0
    by_query = -jnp.sum(jax.scipy.special.xlogy(weights, weights), -1)
    return jnp.sum(by_query, (0, 2)) / jnp.maximum(jnp.sum(sees_key, (0, 2)), 1)


def dead_share(hidden: Float[Array, "... F"]) -> Float[Array, ""]:
    """Share of the F units that are near 0 for all tokens."""
    largest = jnp.abs(hidden).reshape(-1, hidden.shape[-1]).max(0)
    return jnp.mean(largest <= _DEAD)
