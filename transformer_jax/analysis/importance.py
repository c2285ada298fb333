"""How much each head matters (Michel et al. 2019): by the gradient of the loss with respect to a
gate on its output, and by what the loss is without it.

B rows, H heads.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.nn.places import Place, each_place
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like
from transformer_jax.runtime import platform

Batch = Mapping[str, Any]
Loss = Callable[[Any, Batch], tuple[Array, Array]]
"""(params, batch) -> loss and weight, each summed over the batch."""

Gates = Mapping[str, Float[Array | np.ndarray, "B H"]]
Importance = dict[str, Float[np.ndarray, " H"]]
"""By the place of the heads, such as "encoder.layer_0.self_attention.heads"."""


def by_gradient(
    loss: Loss, params: Any, batches: Iterable[Batch], heads: Mapping[str, int]
) -> Importance:
    """The mean over examples x of |dL(x) / d gate| at gates of 1, in nats a token: equation 2 of
    Michel et al., where L(x) is the loss of all of x.

    Args:
      loss: without dropout.
      params: of the model.
      batches: one example a row.
      heads: how many there are at each place.
    """

    def gradients(params: Any, batch: Batch) -> tuple[Array, Gates]:
        rows = len(next(iter(batch.values())))
        gates = {place: jnp.ones((rows, count)) for place, count in heads.items()}

        def gated(gates: Gates) -> tuple[Array, Array]:
            return _gated(loss, gates, params, batch)

        found, weight = jax.grad(gated, has_aux=True)(gates)
        return weight, jax.tree.map(lambda x: jnp.abs(x).sum(axis=0), found)

    weight, sums = _summed(
        jax.jit(gradients, compiler_options=platform.compiler_options()), params, batches
    )
    return {place: x / weight for place, x in sums.items()}


def by_switching_off(
    loss: Loss, params: Any, batches: Sequence[Batch], heads: Mapping[str, int]
) -> Importance:
    """By how much the loss of a token rises, in nats, when a head alone is switched off; below 0
    where it falls. Arguments as above; each head is one more pass over the batches."""

    def sums(params: Any, batch: Batch, gates: Gates) -> tuple[Array, Array]:
        total, weight = _gated(loss, gates, params, batch)
        return weight, total

    program = jax.jit(sums, compiler_options=platform.compiler_options())
    ones = {place: np.ones((1, count), np.float32) for place, count in heads.items()}

    def of(gates: Gates) -> float:
        weight, total = _summed(functools.partial(program, gates=gates), params, batches)
        return float(total / weight)

    whole, found = of(ones), Importance()
    for place, count in heads.items():
        without = 1 - np.eye(count, dtype=np.float32)
        found[place] = np.array([of({**ones, place: row[None]}) - whole for row in without])
    return found


def _gated(loss: Loss, gates: Gates, params: Any, batch: Batch) -> tuple[Array, Array]:
    """The loss with the heads' outputs multiplied by gates."""

    def scale(place: Place, x: Array) -> Array:
        return x * gates[place.path][:, :, None, None]

    with each_place(scale, gates.__contains__):
        return loss(params, batch)


def _summed(program: Callable[..., Any], params: Any, batches: Iterable[Batch]) -> Any:
    found: Any = None
    for batch in batches:
        sums = hosts.to_host(program(params, place_like(params, batch)))
        found = sums if found is None else jax.tree.map(np.add, found, sums)
    return found
