"""What a training can be watched by: norms by layer and kind, attention's entropy, dead units.

A second program computes it, of the state and the batch of a step, before that step is taken: the
step itself is the same whether it is watched or not.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches
from transformer_jax.parallel.sharding import place_local_rows, row_shards
from transformer_jax.runtime import platform
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Batch, LossFn, Update

WATCH = "watch"
"""The split of its records."""

_WEIGHTS, _HIDDEN = "**.weights", "**.feed_forward.hidden"
_TOKENS = 2048  # of each device, whose attention and units are looked at: weights are squares
_DEAD = 1e-3


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Looks at a training every so many updates.

    Attributes:
      every: updates from one look to the next; None: it never looks.
      update: (state, batch) -> the update that the step is going to make.
      loss: of the task, whose forward pass is looked into.
      mesh: of the portable state.
    """

    every: int | None
    update: Callable[[TrainState, Batch], Update]
    loss: LossFn
    mesh: Mesh

    def due(self, step: int) -> bool:
        """Whether it looks at the state that this update is going to change."""
        return self.every is not None and step % self.every == 0

    def __call__(self, state: TrainState, rows: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Figures, by "kind/part".

        "grad", "update" (for a learning rate that validation scores have not lowered) and "param"
        are norms of a part of the model, as "grad/encoder/layer_0/self_attention". Without dropout,
        in some rows of the batch: "entropy" of each query's attention, in nats, a mean of the
        queries and heads, and "least_entropy" of the head with the least; "dead" is the share of a
        layer's hidden units that no token moves farther than 0.001 from 0.

        Args:
          state: portable, before the update.
          rows: of the batch that the update is made from, this process's.
        """
        batch = place_local_rows(rows, self.mesh)
        device = self.mesh.devices.flat[0]
        with platform.compiling_for(device), platform.sharded_over(self.mesh.size):
            figures = self._program(state, batch)
        return {name: float(value) for name, value in jax.device_get(figures).items()}

    @functools.cached_property
    def _program(self) -> Callable[[TrainState, Batch], dict[str, Array]]:
        def look(state: TrainState, batch: Batch) -> dict[str, Array]:
            return norms(state, self.update(state, batch)) | self._inside(state, batch)

        return jax.jit(look, compiler_options=platform.compiler_options())

    def _inside(self, state: TrainState, batch: Batch) -> dict[str, Array]:
        """Of attention and hidden units, in the first of each device's rows."""
        shards = row_shards(self.mesh)

        def first(x: Array) -> Array:
            own = x.reshape(shards, -1, *x.shape[1:])
            count = max(1, _TOKENS // x.shape[1])
            return own[:, :count].reshape(-1, *x.shape[1:])

        figures: dict[str, Array] = {}

        def keep(place: HookPoint, x: Array) -> Array:
            part = place.path.rpartition(".")[0].replace(".", "/")
            if matches(_WEIGHTS, place.path):
                by_head = entropies(x.astype(jnp.float32))
                figures[f"entropy/{part}"] = by_head.mean()
                figures[f"least_entropy/{part}"] = by_head.min()
            else:
                figures[f"dead/{part}"] = dead_share(x.astype(jnp.float32))
            return x

        with intercept_activations(
            keep, lambda path: matches(_WEIGHTS, path) or matches(_HIDDEN, path)
        ):
            self.loss(state.model_params, jax.tree.map(first, batch), None)
        return figures


def norms(state: TrainState, update: Update) -> dict[str, Array]:
    """Norms of gradients, updates and parameters, by part of the model."""
    trees = {"grad": update.grads, "update": update.updates, "param": state.trained}
    squares: dict[str, Array] = {}
    for name, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            key = f"{name}/{part_of(jax.tree_util.keystr(path, simple=True, separator='/'))}"
            squares[key] = squares.get(key, 0.0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    return {key: jnp.sqrt(total) for key, total in squares.items()}


def part_of(path: str) -> str:
    """The part of the model that a parameter belongs to: of "encoder/layer_0/self_attention/query/
    kernel" the first three names, of "embedding/table" the first."""
    return "/".join(path.split("/")[:-1][:3]) or path


def entropies(weights: Float[Array, "B H T S"]) -> Float[Array, " H"]:
    """-sum p log p over the keys, in nats, the mean of the queries that see a key, by head."""
    real = weights.sum(-1) > 0.5  # weights of padding are 0
    each = -jnp.sum(jax.scipy.special.xlogy(weights, weights), -1)
    return jnp.sum(each, (0, 2)) / jnp.maximum(jnp.sum(real, (0, 2)), 1)


def dead_share(hidden: Float[Array, "... F"]) -> Float[Array, ""]:
    """The share of units whose value is near 0 everywhere."""
    largest = jnp.abs(hidden).reshape(-1, hidden.shape[-1]).max(0)
    return jnp.mean(largest <= _DEAD)
