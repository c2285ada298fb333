# SPDX-License-Identifier: Apache-2.0
"""Registries of the sublayers of a Transformer layer."""

from transformer_jax.nn.additive_attention import AdditiveAttention
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.attention_sinks import SinkAttention
from transformer_jax.nn.cache import Cache
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import Experts
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.gated_delta import GatedDeltaNet
from transformer_jax.nn.sublayers import AttentionLayer, FeedForwardLayer
from transformer_jax.registry import Registry

ATTENTION_LAYERS: Registry[type[AttentionLayer]] = Registry(
    "model.attention_layer",
    {
        "multi_head": MultiHeadAttention,
        "sinks": SinkAttention,
        "additive": AdditiveAttention,
        "gated_delta": GatedDeltaNet,
    },
)

FEED_FORWARDS: Registry[type[FeedForwardLayer]] = Registry(
    "model.feed_forward", {"dense": FeedForward, "experts": Experts}
)


def attention_class(config: TransformerConfig) -> type[AttentionLayer]:
    """Class that `config.attention_layer` names; ValueError if there is none."""
    return ATTENTION_LAYERS.find(config.attention_layer)


def feed_forward_class(config: TransformerConfig) -> type[FeedForwardLayer]:
    """Class that `config.feed_forward` names; ValueError if there is none."""
    return FEED_FORWARDS.find(config.feed_forward)


def init_caches(
    config: TransformerConfig, num_layers: int, rows: int, max_length: int
) -> tuple[Cache, ...]:
    """Empty caches of a stack, one for each layer; arguments as of `AttentionLayer.init_cache`."""
    layers = map(config.of_layer, range(num_layers))
    return tuple(attention_class(layer).init_cache(layer, rows, max_length) for layer in layers)
