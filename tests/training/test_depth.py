"""Updates of stacked layers: those of the layers one by one."""

import jax
import numpy as np
import pytest

from transformer_jax.nn.depth import has_stacks, stack_layers, unstack_layers
from transformer_jax.training.optimizer import (
    OPTIMIZERS,
    OptimizerConfig,
    make_optimizer,
    make_schedule,
)

FROZEN = ["layer_1/", "^decoder/"]
"""A layer of the stack, and all of it."""


def drawn(rng):
    """Parameters, or gradients, of two layers and an embedding."""
    layer = {
        "self_attention": {"output": {"kernel": (2, 16, 32)}},
        "feed_forward": {"inner": {"kernel": (32, 48), "bias": (48,)}},
    }
    shapes = {"decoder": {f"layer_{i}": layer for i in range(2)}, "embedding": {"table": (40, 32)}}
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def updated(optimizer, params, gradients):
    """The optimizer's state and the parameters after an update for each gradient."""

    @jax.jit
    def step(state, params, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return state, jax.tree.map(lambda a, b: a + b, params, updates)

    # As training does: the first state is made of layers one by one.
    state = optimizer.init(unstack_layers(params))
    state = stack_layers(state) if has_stacks(params) else state
    for gradient in gradients:
        state, params = step(state, params, gradient)
    return unstack_layers((state, params))


@pytest.mark.parametrize(
    "options", [*({"name": name} for name in OPTIMIZERS), *({"frozen": part} for part in FROZEN)]
)
def test_stacked_layers_are_updated_as_they_are_one_by_one(options):
    """In float32, by 1e-6 of an array's largest element."""
    rng = np.random.default_rng(0)
    params, *gradients = [drawn(rng) for _ in range(3)]
    name = options.get("name", "adamw")
    decay = 0.1 if "optimizer.weight_decay" in OPTIMIZERS[name].reads else 0.0
    config = OptimizerConfig(
        **options, schedule="constant", learning_rate=0.1, weight_decay=decay, clip_norm=1.0
    )
    optimizer = make_optimizer(config, make_schedule(config, 32, num_steps=10))
    expected = updated(optimizer, params, gradients)
    found = updated(optimizer, stack_layers(params), [stack_layers(one) for one in gradients])
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max()),
        found,
        expected,
    )
