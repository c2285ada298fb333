# SPDX-License-Identifier: Apache-2.0
"""A scan over the layers of a stack, which compiles one layer instead of all.

The parameters of a stack are {"layer_0": ..., ..., "layer_{N-1}": ...}; stacked they are
{"layer_*": ...}, where each array has an axis of N layers. If layers differ in their arrays, but
repeat after P layers (`model.layers`), they are {"layer_*_0": ..., ..., "layer_*_{P-1}": ...}: the
first has the layers 0, P, 2 P and so on. Only training stacks them (`parallel.engines`).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn import auxiliary
from transformer_jax.nn.sublayers import at_layer

STACKED = "layer_*"
"""Key of the stacked layers, or the start of their keys."""


def stack_layers(tree: Any, join: Callable[[Sequence[Any]], Any] = jnp.stack) -> Any:
    """Replaces the layers of each stack in the tree by one subtree for each layer of a period.

    The tree is one of parameters, or contains such trees, like the state of an optimizer; all have
    the same period. Layers whose arrays differ and do not repeat, and layers without arrays, are
    left alone. `join` joins the corresponding leaves of layers.
    """
    periods: list[int] = []

    def note_period(node: dict[str, Any]) -> dict[str, Any]:
        periods.append(_period_of(node))
        return node

    _map_dicts(note_period, tree)
    period = math.lcm(*periods)

    def stack(node: dict[str, Any]) -> dict[str, Any]:
        if not _repeats(node, period):
            return node
        layers = [node.pop(name) for name in _layer_names(node)]
        stacked = [
            jax.tree.map(lambda *leaves: join(leaves), *layers[i::period]) for i in range(period)
        ]
        return dict(zip(_stack_names(period), stacked, strict=True)) | node

    return _map_dicts(stack, tree)


def unstack_layers(tree: Any, split: Callable[[Any], Sequence[Any]] = jnp.unstack) -> Any:
    """Inverse of `stack_layers`; `split` splits a leaf into one for each layer."""

    def layers_of(stacked: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(stacked)
        leaves_by_layer = zip(*map(split, leaves), strict=True)
        return [jax.tree.unflatten(structure, layer) for layer in leaves_by_layer]

    def unstack(node: dict[str, Any]) -> dict[str, Any]:
        groups = itertools.zip_longest(*[layers_of(node.pop(name)) for name in _stacks_in(node)])
        layers = [layer for group in groups for layer in group if layer is not None]
        return {f"layer_{i}": layer for i, layer in enumerate(layers)} | node

    return _map_dicts(unstack, tree)


def has_stacks(tree: Any) -> bool:
    """Returns True if the tree contains stacked layers."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return any(STACKED in str(getattr(part, "key", "")) for path in paths for part in path)


def is_stacked(stack: nn.Module) -> bool:
    """Returns True if the parameters of a stack (a module with `layers`) are stacked."""
    return bool(_stacks_in(stack.variables.get("params", {})))


def scan_layers(stack: Any, apply: Callable[[Any, jax.Array], jax.Array], x: jax.Array) -> Any:
    """Applies all layers of a stack whose parameters are stacked.

    Args:
      stack: a bound module. Its `layers` repeat, except for their parameters, after the period of
        the config's pattern; one iteration of the scan is a period.
      apply: (layer, x) -> x. The only rng stream is "dropout", with one key for each layer.
    """
    params = stack.variables["params"]
    depth = len(stack.layers)
    names = _stacks_in(params)
    period = math.lcm(len(stack.config.pattern), len(names))
    layers = [layer.clone(parent=None, name=None) for layer in stack.layers[:period]]
    key = stack.make_rng("dropout") if stack.has_rng("dropout") else None
    collections = [auxiliary.COLLECTION] if auxiliary.is_collected(stack) else []

    def step(x: jax.Array, group: list[tuple[jax.Array, Any]]) -> tuple[jax.Array, Any]:
        added = auxiliary.Collected()
        for i in range(sum(len(indices) for indices, _ in group)):
            row, position = divmod(i, len(group))  # the stacks take turns
            index, params = jax.tree.map(lambda leaf: leaf[row], group[position])  # noqa: B023
            rngs = None if key is None else {"dropout": jax.random.fold_in(key, index)}
            layer = nn.apply(apply, layers[i], mutable=collections)
            with at_layer(index, depth):
                x, variables = cast(Any, layer({"params": params}, x, rngs=rngs))
            added.add(variables)
        return x, added.sums

    # Layers have their numbers beside them, which `step` folds into the key of dropout.
    numbered = [(jnp.arange(depth)[i :: len(names)], params[name]) for i, name in enumerate(names)]
    count = depth // period  # whole periods
    rows = period // len(names)  # layers of each stacked subtree in a period
    whole = count * rows
    groups = jax.tree.map(lambda leaf: leaf[:whole].reshape(count, rows, *leaf.shape[1:]), numbered)
    if count:  # a stack may end within its first period
        x, added = jax.lax.scan(step, x, groups)
        auxiliary.add_sums(stack, jax.tree.map(lambda sums: sums.sum(0), added))
    if count * period < depth:  # the last period is not whole
        x, added = step(x, jax.tree.map(lambda leaf: leaf[whole:], numbered))
        auxiliary.add_sums(stack, added)
    return x


def apply_first_layer(stack: Any, apply: Callable[[Any, jax.Array], Any], x: jax.Array) -> Any:
    """Applies the first layer of a bound stack alone, whether its parameters are stacked or not;
    `apply` is a function of the layer and x, without dropout."""
    if not is_stacked(stack):
        return apply(stack.layers[0], x)
    params = stack.variables["params"]
    first = jax.tree.map(lambda leaf: leaf[0], params[_stacks_in(params)[0]])
    return nn.apply(apply, stack.layers[0].clone(parent=None, name=None))({"params": first}, x)


def _map_dicts(change: Callable[[dict[str, Any]], Any], tree: Any) -> Any:
    """Replaces each dict in the tree by `change` of a copy, from the leaves to the root."""

    def map_node(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return change({name: _map_dicts(change, child) for name, child in node.items()})

    return jax.tree.map(map_node, tree, is_leaf=lambda node: isinstance(node, dict))


def _layer_names(node: Mapping[str, Any]) -> list[str]:
    """Keys of the layers of a stack, in order; empty if a dict holds none."""
    return [f"layer_{i}" for i in range(sum(f"layer_{i}" in node for i in range(len(node))))]


def _stack_names(period: int) -> list[str]:
    return [STACKED] if period == 1 else [f"{STACKED}_{i}" for i in range(period)]


def _stacks_in(node: Mapping[str, Any]) -> list[str]:
    """Keys of the stacked layers in a dict, in order."""
    count = sum(name.startswith(STACKED) for name in node)
    return _stack_names(count) if count else []


def _period_of(node: Mapping[str, Any]) -> int:
    """Smallest number of layers after which a stack repeats; 1 if it does not, or is none."""
    periods = range(1, len(_layer_names(node)) // 2 + 1)
    return next((period for period in periods if _repeats(node, period)), 1)


def _repeats(node: Mapping[str, Any], period: int) -> bool:
    """Returns True if the layers of a stack repeat after a period, at least twice unless it is 1,
    and have arrays, with equal names, shapes and dtypes."""
    layers = [node.get(name) for name in _layer_names(node)]
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), layer) for layer in layers]
    if len(kinds) < (1 if period == 1 else 2 * period):
        return False
    equal = all(kind == later for kind, later in zip(kinds, kinds[period:], strict=False))
    return equal and all(jax.tree.leaves(kind) for kind in kinds[:period])
