"""Optimizers that see the layers of a stack one by one, however the training state has them."""

from typing import Any

import optax

from transformer_jax.nn.depth import has_stacks, stack_layers, unstack_layers


def on_each_layer(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with the updates that it gives layers that are not stacked (`nn.depth`).

    For one that looks at more than an element: at the shape or norm of an array, or at its path.
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new = optimizer.update(*unstack_layers((grads, state, params)))
        if not has_stacks(grads):
            return updates, new
        return stack_layers(updates), stack_layers(new)

    return optax.GradientTransformation(optimizer.init, update)
