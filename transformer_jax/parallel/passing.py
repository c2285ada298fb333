"""Arrays of all processes, whole in process 0, and from there to all again: bit for bit."""

import math
from typing import Any

import jax
import numpy as np

from transformer_jax.parallel import hosts


def to_primary(tree: Any) -> Any:
    """A tree of arrays as NumPy arrays of its own, whole in process 0; in the others, of None."""

    def whole(leaf: Any) -> np.ndarray | None:
        found = hosts.to_host(leaf)  # one after another: the others need not hold all at once
        return found.copy() if hosts.is_primary() else None

    return jax.tree.map(whole, tree)


def from_primary(tree: Any, abstract: Any) -> Any:
    """The inverse of `to_primary`.

    Args:
      tree: of NumPy arrays, in process 0; the others give None.
      abstract: a tree of their shapes, with the shardings that they get.
    """

    def placed(like: Any, own: np.ndarray | None) -> jax.Array:
        nbytes = math.prod(like.shape) * like.dtype.itemsize
        sent = None if own is None else np.frombuffer(own.tobytes(), np.uint8)
        whole = hosts.bytes_of_primary(sent, nbytes).view(like.dtype).reshape(like.shape)
        return jax.make_array_from_callback(like.shape, like.sharding, whole.__getitem__)

    leaves, structure = jax.tree.leaves(abstract), jax.tree.structure(abstract)
    own = [None] * len(leaves) if tree is None else jax.tree.leaves(tree)
    return jax.tree.unflatten(structure, map(placed, leaves, own))
