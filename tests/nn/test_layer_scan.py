# SPDX-License-Identifier: Apache-2.0
"""Stacked layers: trees round-trip, and losses and gradients equal those of unrolled layers."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compiled import apply, assert_near, run
from tests.models.texts import PADDED, small_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.layer_scan import STACKED, has_stacks, stack_layers, unstack_layers
from transformer_jax.nn.sublayers import layer_place
from transformer_jax.nn.transformer import BLOCKS, Block

CONFIG = small_config(depth=2, norm_placement="pre")


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative", "num_layers": 2},
        {"positions": "t5", "layers": "attention_window=2 | default", "num_layers": 5},
        {"positions": "none", "layers": "2 x default | attention_window=2", "num_layers": 2},
    ],
    ids=["tables in each layer", "a table that all layers use", "part of a period"],
)
def test_scanned_layers_are_unrolled_layers(changes, random_params):
    """Two periods of windows, whose tables alone are beside the stack, and a layer after them."""
    model = DecoderOnly(dataclasses.replace(CONFIG, **changes))
    params = random_params(model, *PADDED)["params"]

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(params):
        return (model.apply({"params": params}, *PADDED) ** 2).mean()

    stacked = run(stack_layers, params)
    assert has_stacks(stacked) and not has_stacks(params)
    assert [key for key in stacked["decoder"] if key.startswith(STACKED)] == [STACKED]
    loss, gradient = loss_and_gradient(stacked)
    assert_near((loss, run(unstack_layers, gradient)), loss_and_gradient(params))


class Numbered(Block):
    """Scales the stream by the layer's place."""

    def __call__(self, stream, *args):
        place = layer_place()
        return super().__call__(stream * (1 + place.index / place.depth), *args)


def test_a_scanned_layer_knows_its_place(random_params, with_entries):
    with_entries(BLOCKS, {"numbered": Numbered})
    config = dataclasses.replace(CONFIG, block="numbered", positions="none", num_layers=3)
    model = DecoderOnly(config)
    params = random_params(model, *PADDED)["params"]
    logits = apply(model, {"params": params}, *PADDED)
    assert_near(apply(model, {"params": run(stack_layers, params)}, *PADDED), logits)
    plain = DecoderOnly(dataclasses.replace(config, block="sequential"))
    assert np.abs(apply(plain, {"params": params}, *PADDED) - logits).max() > 0.1
    with pytest.raises(RuntimeError, match="outside of the layers"):
        layer_place()


def test_each_scanned_layer_has_its_own_dropout(random_params):
    """Compares the last additions of two layers to the residual stream."""
    model = DecoderOnly(dataclasses.replace(CONFIG, dropout_rate=0.5))
    params, added = random_params(model, *PADDED)["params"], []

    def look(method, args, kwargs, context):
        result = method(*args, **kwargs)
        if context.module.name == "feed_forward_residual" and context.method_name == "write":
            jax.debug.callback(lambda y: added.append(np.asarray(y)), result - args[0])
        return result

    @jax.jit
    def additions(params, key):
        with nn.intercept_methods(look):
            return model.apply({"params": params}, *PADDED, False, rngs={"dropout": key})

    additions(run(stack_layers, params), jax.random.key(1)).block_until_ready()
    jax.effects_barrier()
    first, second = (np.abs(each) < 1e-6 for each in added)
    assert 0.3 < first.mean() < 0.7 and 0.3 < (first == second).mean() < 0.7


def test_layers_of_different_shapes_are_not_stacked():
    first, masked = {"a": jnp.zeros(2)}, {"a": optax.MaskedNode()}
    others = [{"a": jnp.zeros(3)}, {"b": jnp.zeros(2)}, {"a": jnp.zeros(2, int)}]
    for layers in (*((first, other) for other in others), (masked, masked)):
        tree = {f"layer_{i}": layer for i, layer in enumerate(layers)}
        assert not has_stacks(stack_layers(tree)) and stack_layers(tree).keys() == tree.keys()


def test_a_pattern_is_scanned_by_its_period(random_params):
    """A whole period of arrays, whose half is one of windows, and layers after it."""
    layers = "qk_norm=true | default | qk_norm=true attention_window=2 | default"
    changes = {"layers": layers, "num_layers": 7, "num_heads": 2, "d_model": 8}
    model = DecoderOnly(dataclasses.replace(CONFIG, positions="rotary", **changes))
    params = random_params(model, *PADDED)["params"]
    state = run(lambda params: stack_layers((optax.adam(1e-3).init(params), params)), params)
    keys = [key for key in state[1]["decoder"] if key.startswith(STACKED)]
    assert keys == [f"{STACKED}_0", f"{STACKED}_1"]
    assert state[0][0].mu.keys() == state[1].keys()
    logits = jax.jit(lambda params: model.apply({"params": params}, *PADDED))
    assert_near(logits(state[1]), logits(params))
    jax.tree.map(np.testing.assert_array_equal, run(unstack_layers, state[1]), params)
