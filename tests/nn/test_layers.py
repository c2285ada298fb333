# SPDX-License-Identifier: Apache-2.0
"""Sublayers of one's own, in stacks and models that know only their base classes."""

import dataclasses
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, decode, run
from transformer_jax.errors import UserError
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import Cache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layer_scan import stack_layers
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.sublayers import AttentionLayer

SIZES = dict(d_model=8, d_ff=16, num_heads=2, num_layers=2, vocab_size=11, dtype="float32")
TOKENS = np.random.default_rng(0).integers(1, 11, (2, 5))


class TotalCache(Cache):
    """Sum of the tokens of each row."""

    total: jax.Array

    @property
    def num_beams(self):
        return self.total.shape[1]


class Total(AttentionLayer):
    """Each token's output is the sum of all real tokens up to it, by a recurrent state."""

    position_hooks = ()
    parameters = (Parameter("total_scale", "scale", ("model",)),)

    def setup(self):
        self.scale = self.param("total_scale", lambda key: jnp.ones(self.config.d_model))

    def self_attend(self, x, sequences, deterministic, cache=None):
        real = 1.0 if sequences.real is None else sequences.real[..., None]
        sums = jnp.cumsum(x * real, axis=1)
        if cache is not None:
            sums = sums + cache.total.reshape(len(x), 1, -1)
            total = sums[:, -1].reshape(cache.total.shape)
            cache = cache.replace(total=total, length=cache.length + x.shape[1])
        return sums * self.scale, cache

    @classmethod
    def init_cache(cls, config, rows, max_length):
        return TotalCache(jnp.zeros(rows, jnp.int32), jnp.zeros((rows, 1, config.d_model)))


class Untold(MultiHeadAttention):
    @classmethod
    def init_cache(cls, config, rows, max_length):
        return AttentionLayer.init_cache.__func__(cls, config, rows, max_length)


class Routed(FeedForward):
    """Padding gets nothing."""

    def __call__(self, x, deterministic, real=None):
        y = super().__call__(x, deterministic)
        return y if real is None else y * real[..., None]


@pytest.fixture
def registered(with_entries):
    with_entries(ATTENTION_LAYERS, {"total": Total, "untold": Untold})
    with_entries(FEED_FORWARDS, {"routed": Routed})


def model_of(**fields):
    config = TransformerConfig(**SIZES, architecture="decoder_only", **fields)
    model = DecoderOnly(config)
    return model, jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]


def test_a_recurrent_layer_passes_over_the_padding_of_prompts(registered):
    model, params = model_of(attention_layer="total", positions="none", feed_forward="routed")
    assert "total_scale" in params["decoder"]["layer_1"]["self_attention"]
    variables, lengths = {"params": params}, np.array([5, 3])
    full = apply(model, variables, TOKENS)
    (first, then), state = decode(model, variables, TOKENS, lengths, [[7, 7]])
    np.testing.assert_allclose(first, full[[0, 1], lengths - 1], atol=1e-5)
    more = np.concatenate([TOKENS[1:, :3], [[7]]], axis=1)
    np.testing.assert_allclose(then[1], apply(model, variables, more)[0, -1], atol=1e-5)
    np.testing.assert_array_equal(state[0].length, lengths + 1)


def test_a_layer_without_a_cache_does_not_decode(registered):
    model = DecoderOnly(TransformerConfig(**SIZES, attention_layer="untold"))
    jax.eval_shape(model.init, jax.random.key(0), TOKENS)
    init = lambda: model.init(jax.random.key(0), TOKENS, np.array([5, 5]), 8, method="prefill")  # noqa: E731
    with pytest.raises(UserError, match="Untold has no `init_cache`, so that it cannot decode"):
        jax.eval_shape(init)


def test_the_first_layer_shares_its_values(registered, random_params):
    recipe = Path(__file__).parents[2] / "docs" / "recipes" / "value_residual.py"
    runpy.run_path(str(recipe))
    fields = dict(positions="rotary", norm_placement="pre")
    config = TransformerConfig(**SIZES, **fields, architecture="decoder_only")
    plain = DecoderOnly(config)
    model = DecoderOnly(dataclasses.replace(config, attention_layer="value_residual"))
    params = random_params(model, TOKENS)["params"]

    @jax.jit
    def logits(params):
        return model.apply({"params": params}, TOKENS)

    def with_mix(a, b):  # in the second layer
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.array([a, b]) if "value_mix" in str(path[-1]) else leaf, params
        )

    full = logits(params)
    np.testing.assert_allclose(logits(run(stack_layers, params)), full, rtol=1e-4, atol=1e-5)
    own = jax.jit(plain.apply)({"params": with_mix(0.0, 1.0)}, TOKENS)
    np.testing.assert_allclose(logits(with_mix(0.0, 1.0)), own, rtol=1e-4, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda params: logits(params).sum()))(with_mix(1.0, 0.0))
    by_layer = [gradient["decoder"][f"layer_{i}"]["self_attention"]["value"] for i in (0, 1)]
    assert [bool(jnp.any(layer["kernel"] != 0)) for layer in by_layer] == [True, False]

    following = [TOKENS[[0, 1], [3, 2]]]
    results, _ = decode(model, {"params": params}, TOKENS[:, :3], [3, 2], following)
    expected = full[[0, 1], [2, 1]], full[[0, 1], [3, 2]]
    np.testing.assert_allclose(results, expected, rtol=1e-4, atol=1e-5)
