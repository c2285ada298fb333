# SPDX-License-Identifier: Apache-2.0
"""The residual connection around sublayers, and what components must return."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.formulas import layer_norm
from tests.refusals import assert_refused
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.norms import LayerNorm
from transformer_jax.nn.sublayers import FeedForwardLayer
from transformer_jax.nn.transformer import BLOCKS, RESIDUALS, Block, Residual

PLACEMENTS = ("post", "pre", "sandwich")
X = np.random.default_rng(1).normal(2, 3, (2, 5, 16)).astype(np.float32)
WEIGHT = np.random.default_rng(2).normal(size=(16, 16)).astype(np.float32)


def residual(placement, **changes):
    return Residual(TransformerConfig(d_model=16, num_heads=4, norm_placement=placement, **changes))


def around_a_sublayer(module, x, sublayer, deterministic=True):
    return module.write(x, sublayer(module.read(x)), deterministic)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_residual_connections_the_stream_is_what_a_sublayer_returns(
    random_params, placement
):
    module = residual(placement, residual_connections=False)
    variables = random_params(module, X, jnp.negative, method=around_a_sublayer)
    y = apply(module, variables, X, lambda x: x @ WEIGHT, method=around_a_sublayer)
    params = variables["params"]
    x = layer_norm(params["norm_before"], X) if "norm_before" in params else X
    expected = layer_norm(params["norm_after"], x @ WEIGHT) if placement != "pre" else x @ WEIGHT
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dropout_acts_only_on_the_sublayers_output(random_params, placement):
    module = residual(placement, dropout_rate=0.5)
    variables = random_params(module, X, jnp.ones_like, method=around_a_sublayer)

    def without_norms(next_fun, args, kwargs, context):
        return args[0] if isinstance(context.module, LayerNorm) else next_fun(*args, **kwargs)

    with nn.intercept_methods(without_norms):
        call = {"method": around_a_sublayer, "rngs": {"dropout": jax.random.key(0)}}
        y = apply(module, variables, X, jnp.ones_like, False, **call)
    np.testing.assert_allclose(np.unique(np.round(y - X, 3)), [0, 2])


# --- What components return ---


class OneHead(MultiHeadAttention):
    def combine(self, heads, x):
        return super().combine(heads[:, :, :1], x)


class NoCache(MultiHeadAttention):
    def self_attend(self, x, sequences, deterministic, cache=None):
        return super().self_attend(x, sequences, deterministic, cache)[0]


class NoArguments(MultiHeadAttention):
    def self_attend(self, x, sequences):
        return x, None


class FlatBias(MultiHeadAttention):
    def logit_bias(self, inputs):
        return jnp.zeros(inputs.key.shape[:2])


class Unlisted(MultiHeadAttention):
    def per_key(self, x, sequences, cache):
        return {"age": x[..., 0]}


class Misshaped(Unlisted):
    @classmethod
    def per_key_shapes(cls, config):
        return {"age": (2,)}


class Nothing(FeedForwardLayer):
    def __call__(self, x, deterministic, real=None):
        return None


class Wider(Block):
    def __call__(self, stream, *inputs):
        stream, cache = super().__call__(stream, *inputs)
        return jnp.concatenate([stream, stream], axis=-1), cache


class Stays(Residual):
    axes = ("position", "stream", "feature")

    def enter(self, x):
        return jnp.stack([x, x], axis=2)

    def read(self, stream):
        return super().read(stream[:, :, 0])

    def write(self, stream, y, deterministic):
        return stream + self.to_add(y, deterministic)[:, :, None]

    def leave(self, stream):
        return stream


class Unnamed(Stays):
    axes = Residual.axes


class Loses(Block):
    def __call__(self, *inputs):
        return super().__call__(*inputs)[0], None


def test_wrong_results_are_named_with_file_and_shapes(with_entries):
    with_entries(ATTENTION_LAYERS, {"head": OneHead, "no_cache": NoCache, "none": NoArguments})
    with_entries(ATTENTION_LAYERS, {"flat": FlatBias, "unlisted": Unlisted, "shape": Misshaped})
    with_entries(FEED_FORWARDS, {"nothing": Nothing})
    with_entries(ACTIVATIONS, {"mean": lambda x: x.mean(-1)})
    with_entries(BLOCKS, {"wider": Wider, "loses": Loses})
    with_entries(RESIDUALS, {"stays": Stays, "unnamed": Unnamed})
    sizes = {"d_model": 8, "d_ff": 6, "num_heads": 4, "num_layers": 1, "vocab_size": 5}
    tokens = np.ones((1, 3), np.int32)

    def built(**changes):
        model = DecoderOnly(TransformerConfig(**sizes, dropout_rate=0.0, **changes))
        return partial(jax.eval_shape, model.init, jax.random.key(0), tokens)

    here = "of test_transformer.py"
    changes = {
        f"combine {here} returned [1, 3, 1, 2]; it must return [1": {"attention_layer": "head"},
        f"self_attend {here} returned [1, 3, 8]; it must": {"attention_layer": "no_cache"},
        f"self_attend {here} takes (x, sequences); it is called": {"attention_layer": "none"},
        f"logit_bias {here} returned [1, 3]; it must return [1": {"attention_layer": "flat"},
        f"per_key {here} returned age; per_key_shapes": {"attention_layer": "unlisted"},
        f"per_key, 'age', {here} returned [1, 3]; it must": {"attention_layer": "shape"},
        f"__call__ {here} returned NoneType; it must return": {"feed_forward": "nothing"},
        f"activation 'mean' {here} returned [1, 3]": {"activation": "mean"},
        f"__call__ {here} returned [1, 3, 16]; it must return [1, 3, 8]": {"block": "wider"},
        f"leave {here} returned [1, 3, 2, 8]": {"residual": "stays", "norm_placement": "pre"},
        f"enter {here} returned [1, 3, 2, 8]; it must return [1, 3, any]": {"residual": "unnamed"},
    }
    losing = DecoderOnly(TransformerConfig(**sizes, block="loses"))
    decoded = partial(losing.init, jax.random.key(0), tokens, np.array([3]), 8, method="prefill")
    words = f"__call__ {here} returned no cache; it must return"
    refused = {words: built(**fields) for words, fields in changes.items()}
    assert_refused(refused | {words: partial(jax.eval_shape, decoded)})


def test_merged_attention_needs_rotated_keys_or_none():
    def init(**changes):
        sizes = {"d_model": 16, "num_heads": 4, "source_vocab_size": 9, "target_vocab_size": 9}
        config = TransformerConfig(block="merged", num_decoder_layers=1, **sizes, **changes)
        tokens = np.ones((1, 3), np.int32)
        jax.eval_shape(EncoderDecoder(config).init, jax.random.key(0), tokens, target=tokens)

    words = "block 'merged' needs attention_layer 'multi_head' and positions that are rotary"
    assert_refused({words: lambda: init(positions="t5")})
