"""What a parameter's path decides about its updates: decay, freezing, Muon's matrices."""

import re
from collections.abc import Callable
from typing import Any

import jax
import optax

from transformer_jax.errors import UserError
from transformer_jax.nn.depth import STACKED
from transformer_jax.nn.parameters import parameter_at

Params = Any
"""A tree of parameters, or of what there is for each of them."""


def decayed(params: Params) -> Params:
    """A tree of bools: which parameters weight decay shrinks, by `nn.parameters`."""

    def decays(path: str, _: jax.Array) -> bool:
        parameter = parameter_at(path)
        return parameter is not None and parameter.decays

    return _map_with_path(decays, params)


def frozen_labels(frozen: str, params: Params) -> Params:
    """ "trained" or "frozen" for each parameter; the paths of frozen ones contain a match.

    Raises:
      UserError: all of them do, or none.
    """

    def label(path: str, _: jax.Array) -> str:
        return "frozen" if re.search(frozen, path) else "trained"

    labels = _map_with_path(label, params)
    if set(jax.tree.leaves(labels)) != {"trained", "frozen"}:
        raise UserError(f"optimizer.frozen {frozen!r} is found in all parameters' paths or in none")
    return labels


def matrices(params: Params) -> Params:
    """Which axes of each kernel are the matrix's rows and columns, all heads together: [D, H, K] is
    D x HK, [H, K, D] is HK x D; None for other parameters. An axis of layers is neither."""

    def axes(path: str, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        parameter = parameter_at(path)
        if parameter is None or parameter.kind != "matrix":
            return None
        every, inputs = range(leaf.ndim)[STACKED in path :], parameter.input_axes
        return optax.contrib.MuonDimensionNumbers(tuple(every[:inputs]), tuple(every[inputs:]))

    return _map_with_path(axes, params)


def _map_with_path(function: Callable[[str, jax.Array], Any], params: Params) -> Params:
    """`function(path, leaf)` of each parameter, the path as "encoder/layer_0/..."."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(jax.tree_util.keystr(path, simple=True, separator="/"), leaf),
        params,
    )
