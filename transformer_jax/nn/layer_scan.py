# SPDX-License-Identifier: Apache-2.0
"""A scan over the layers of a stack, which compiles one layer instead of all.

The parameters of a stack are {"layer_0": ..., ..., "layer_{N-1}": ...}; stacked they are
{"layer_*": ...}, where each array has an axis of N layers. `Encoder` and `Decoder` scan over
stacked parameters, so that a program for 48 layers is as long as for one. Only training stacks them
(`parallel.scan_engine`): checkpoints, hooks and searches have one path for each layer.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn import auxiliary

STACKED = "layer_*"
"""Key of the stacked layers."""


def stack_layers(tree: Any, join: Callable[[Sequence[Any]], Any] = jnp.stack) -> Any:
    """Replaces the layers of each stack in the tree by one subtree.

    Layers whose arrays differ in shape or dtype are left alone, as are layers without arrays (in
    the state of an optimizer that does not train them).

    Args:
      tree: parameters, or a tree that contains such trees, like the state of an optimizer.
      join: joins the corresponding leaves of all layers.
    """

    def stack(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        node = {name: stack_layers(child, join) for name, child in node.items()}
        names = [f"layer_{i}" for i in range(sum(f"layer_{i}" in node for i in range(len(node))))]
        if not names or not _have_equal_shapes([node.get(name) for name in names]):
            return node
        layers = jax.tree.map(lambda *leaves: join(leaves), *[node.pop(name) for name in names])
        return {STACKED: layers} | node

    return jax.tree.map(stack, tree, is_leaf=_is_dict)


def unstack_layers(tree: Any, split: Callable[[Any], Sequence[Any]] = jnp.unstack) -> Any:
    """Inverse of `stack_layers`; `split` splits a leaf into one for each layer."""

    def unstack(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        node = {name: unstack_layers(child, split) for name, child in node.items()}
        if STACKED not in node:
            return node
        leaves, structure = jax.tree.flatten(node.pop(STACKED))
        each = zip(*map(split, leaves), strict=True)
        layers = [jax.tree.unflatten(structure, layer) for layer in each]
        return {f"layer_{i}": layer for i, layer in enumerate(layers)} | node

    return jax.tree.map(unstack, tree, is_leaf=_is_dict)


def has_stacks(tree: Any) -> bool:
    """Returns True if the tree contains stacked layers."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return any(getattr(part, "key", None) == STACKED for path in paths for part in path)


def is_stacked(stack: nn.Module) -> bool:
    """Returns True if the parameters of a stack (a module with `layers`) are stacked."""
    return stack.has_variable("params", STACKED)


def scan_layers(stack: Any, apply: Callable[[Any, jax.Array], jax.Array], x: jax.Array) -> Any:
    """Applies all layers of a stack whose parameters are stacked.

    Args:
      stack: a bound module whose `layers` differ only in their parameters. If some have full
        attention (`full_attention_every`), one iteration of the scan is a group of layers.
      apply: (layer, x) -> x. The only rng stream is "dropout", with one key for each layer.
      x: input of the first layer.
    """
    params: Any = stack.get_variable("params", STACKED)
    depth, period = len(stack.layers), stack.config.full_attention_every or 1
    layers = [layer.clone(parent=None, name=None) for layer in stack.layers[:period]]
    key = stack.make_rng("dropout") if stack.has_rng("dropout") else None
    collections = [auxiliary.COLLECTION] if auxiliary.is_collected(stack) else []

    def step(x: jax.Array, group: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        added = auxiliary.Collected()
        for i in range(len(group[0])):
            index, params = jax.tree.map(lambda leaf: leaf[i], group)  # noqa: B023
            rngs = None if key is None else {"dropout": jax.random.fold_in(key, index)}
            layer = nn.apply(apply, layers[i], mutable=collections)
            x, variables = cast(Any, layer({"params": params}, x, rngs=rngs))
            added.add(variables)
        return x, added.sums

    numbered, whole = (jnp.arange(depth), params), depth - depth % period
    groups = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, period, *leaf.shape[1:]), numbered)
    x, added = jax.lax.scan(step, x, groups)
    auxiliary.add_sums(stack, jax.tree.map(lambda sums: sums.sum(0), added))
    if whole < depth:
        x, added = step(x, jax.tree.map(lambda leaf: leaf[whole:], numbered))
        auxiliary.add_sums(stack, added)
    return x


def _have_equal_shapes(layers: Sequence[Any]) -> bool:
    """Returns True if the layers have arrays, all with the same names, shapes and dtypes."""
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), layer) for layer in layers]
    return bool(jax.tree.leaves(kinds)) and all(kind == kinds[0] for kind in kinds)


def _is_dict(node: Any) -> bool:
    return isinstance(node, dict)
