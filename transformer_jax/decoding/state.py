"""Reorders decoding state: each surviving beam takes its parent's.

B sentences, J beams of a sentence before and K after, N = B J rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer_jax.decoding.interface import KeepsOrder, State


def of_parents(state: State, parents: Int[Array, "B K"], num_parents: int) -> State:
    """The state of new beams, each taken from its parent, one of `num_parents`, J."""
    batch_size, beam_size = parents.shape
    if beam_size == num_parents == 1:
        return state
    rows = (parents + num_parents * jnp.arange(batch_size)[:, None]).reshape(-1)
    return _map(lambda part: part.reorder(parents), lambda leaf: of_rows(leaf, rows), state)


def of_sentences(state: State, sentences: Int[Array, " B"], num_beams: int) -> State:
    """The state of all beams of the chosen sentences."""
    rows = (sentences[:, None] * num_beams + jnp.arange(num_beams)).reshape(-1)
    return _map(lambda part: of_rows(part, sentences), lambda leaf: of_rows(leaf, rows), state)


def of_rows(tree: Any, rows: Int[Array, " N"]) -> Any:
    """The chosen rows of every leaf."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _map(of_part: Callable[[Any], Any], of_leaf: Callable[[Array], Array], state: State) -> State:
    """Maps parts that keep the order of their beams, led by B, and all other leaves, led by N."""

    def keeps_order(part: Any) -> bool:
        return isinstance(part, KeepsOrder)

    def mapped(part: Any) -> Any:
        return of_part(part) if keeps_order(part) else of_leaf(part)

    return jax.tree.map(mapped, state, is_leaf=keeps_order)
