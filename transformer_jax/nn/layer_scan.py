"""Depth as an axis: the layers of a stack in one array each, compiled once and looped over.

A stack's parameters are {"layer_0": ..., ..., "layer_{N-1}": ...}; stacked they are {"layer_*":
...}, each array with an axis of N. `Encoder` and `Decoder` loop over stacked parameters with a
scan, so that a program is as long for 48 layers as for one. Training alone stacks
(`parallel.scan_engine`): paths that are stored, shown or searched for name the layers one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

STACKED = "layer_*"
"""The key of a stack's layers together."""


def stack_layers(tree: Any, join: Callable[[Sequence[Any]], Any] = jnp.stack) -> Any:
    """The tree with the layers of each stack in it as one subtree.

    Layers that differ in more than their values stay as they are, and so do those without arrays,
    as in the state of an optimizer that leaves some of them alone.

    Args:
      tree: parameters, or what holds trees like them, as the state of an optimizer.
      join: makes one leaf of those that stand in one place of all layers.
    """

    def stacked(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        node = {name: stack_layers(child, join) for name, child in node.items()}
        names = [f"layer_{i}" for i in range(sum(f"layer_{i}" in node for i in range(len(node))))]
        if not names or not _alike([node.get(name) for name in names]):
            return node
        layers = jax.tree.map(lambda *leaves: join(leaves), *[node.pop(name) for name in names])
        return {STACKED: layers} | node

    return jax.tree.map(stacked, tree, is_leaf=_is_dict)


def unstack_layers(tree: Any, split: Callable[[Any], Sequence[Any]] = jnp.unstack) -> Any:
    """The inverse of `stack_layers`; `split` takes a leaf apart into those of the layers."""

    def unstacked(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        node = {name: unstack_layers(child, split) for name, child in node.items()}
        if STACKED not in node:
            return node
        leaves, structure = jax.tree.flatten(node.pop(STACKED))
        each = zip(*map(split, leaves), strict=True)
        layers = [jax.tree.unflatten(structure, of_layer) for of_layer in each]
        return {f"layer_{i}": layer for i, layer in enumerate(layers)} | node

    return jax.tree.map(unstacked, tree, is_leaf=_is_dict)


def has_stacks(tree: Any) -> bool:
    """Whether there are stacked layers in a tree."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return any(getattr(part, "key", None) == STACKED for path in paths for part in path)


def is_stacked(stack: nn.Module) -> bool:
    """Whether the parameters that a module with `layers` is applied to are stacked."""
    return stack.has_variable("params", STACKED)


def scan_layers(stack: Any, apply: Callable[[Any, jax.Array], jax.Array], x: jax.Array) -> Any:
    """x after all layers of a stack whose parameters are stacked.

    Args:
      stack: a bound module; `layers` are its layers, equal but for their parameters, and for those
        of full attention (`full_attention_every`): then a turn of the loop is a group of layers.
      apply: (layer, x) -> x. Of the rng streams only "dropout" is there, with a key for each layer.
      x: what the first layer takes.
    """
    params: Any = stack.get_variable("params", STACKED)
    depth, period = len(stack.layers), stack.config.full_attention_every or 1
    layers = [layer.clone(parent=None, name=None) for layer in stack.layers[:period]]
    key = stack.make_rng("dropout") if stack.has_rng("dropout") else None

    def step(x: jax.Array, group: tuple[jax.Array, Any]) -> tuple[jax.Array, None]:
        for i in range(len(group[0])):
            index, params = jax.tree.map(lambda leaf: leaf[i], group)  # noqa: B023
            rngs = None if key is None else {"dropout": jax.random.fold_in(key, index)}
            x = cast(jax.Array, nn.apply(apply, layers[i])({"params": params}, x, rngs=rngs))
        return x, None

    numbered, whole = (jnp.arange(depth), params), depth - depth % period
    groups = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, period, *leaf.shape[1:]), numbered)
    x, _ = jax.lax.scan(step, x, groups)
    if whole < depth:
        x, _ = step(x, jax.tree.map(lambda leaf: leaf[whole:], numbered))
    return x


def _alike(layers: Sequence[Any]) -> bool:
    """Whether these have arrays, the same ones, of the same shapes and dtypes."""
    kinds = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), layer) for layer in layers]
    return bool(jax.tree.leaves(kinds)) and all(kind == kinds[0] for kind in kinds)


def _is_dict(node: Any) -> bool:
    return isinstance(node, dict)
