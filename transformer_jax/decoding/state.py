"""The state of hypotheses that change places: whose it was, it follows.

B sentences, J hypotheses of a sentence, N = B J.
"""

from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.decoding.interface import State


def of_parents(state: State, parents: jax.Array, num_parents: int) -> State:
    """The state of new hypotheses: that of their parents, int32 [B, K] of J."""
    batch_size, beam_size = parents.shape
    if beam_size == num_parents == 1:
        return state
    rows = (parents + num_parents * jnp.arange(batch_size)[:, None]).reshape(-1)
    return _map(lambda part: part.follow(parents), lambda leaf: of_rows(leaf, rows), state)


def of_sentences(state: State, sentences: jax.Array, num_beams: int) -> State:
    """The state of all J hypotheses of some sentences, int32 [B]."""
    rows = (sentences[:, None] * num_beams + jnp.arange(num_beams)).reshape(-1)
    return _map(lambda part: of_rows(part, sentences), lambda leaf: of_rows(leaf, rows), state)


def of_rows(tree: Any, rows: jax.Array) -> Any:
    """Some rows of every leaf."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _map(of_part, of_leaf, state):
    """Maps the parts that keep order among their beams, led by B, and the leaves led by N."""

    def keeps_order(part):
        return hasattr(part, "follow")

    def mapped(part):
        return of_part(part) if keeps_order(part) else of_leaf(part)

    return jax.tree.map(mapped, state, is_leaf=keeps_order)
