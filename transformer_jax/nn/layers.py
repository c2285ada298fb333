# SPDX-License-Identifier: Apache-2.0
"""Registries of the sublayers of a Transformer layer."""

import re
from typing import Any

import jax

from transformer_jax.nn import attention_variants
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import Experts
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.gated_delta import GatedDeltaNet
from transformer_jax.nn.latent_attention import LatentAttention
from transformer_jax.nn.parameters import named_leaves
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.sublayers import POSITION_HOOKS, AttentionLayer, FeedForwardLayer
from transformer_jax.registry import Registry

ATTENTION_LAYERS: Registry[type[AttentionLayer]] = Registry(
    "model.attention_layer",
    {
        "multi_head": MultiHeadAttention,
        "sinks": attention_variants.SinkAttention,
        "additive": attention_variants.AdditiveAttention,
        "prefix": attention_variants.PrefixAttention,
        "bidirectional": attention_variants.BidirectionalAttention,
        "gated_delta": GatedDeltaNet,
        "latent": LatentAttention,
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


def looks_ahead(config: TransformerConfig) -> list[bool]:
    """Whether each layer of the pattern sees all later tokens in a decoder, too."""
    layers = map(config.of_layer, range(len(config.pattern)))
    bidirectional = attention_variants.BidirectionalAttention
    return [issubclass(attention_class(layer), bidirectional) for layer in layers]


def is_causal(config: TransformerConfig) -> bool:
    """Whether no layer of a decoder sees a later token, so that positions need not tell them
    apart."""
    layers = map(config.of_layer, range(len(config.pattern)))
    see_later = (attention_variants.BidirectionalAttention, attention_variants.PrefixAttention)
    return not any(issubclass(attention_class(layer), see_later) for layer in layers)


def check_layers(config: TransformerConfig, num_layers: int, causal: bool) -> None:
    """Raises ValueError if the layers of a stack cannot do what the config asks of them."""
    encoding = encoding_class(config)
    is_applied = False
    last = max(map(config.owner_of_layer, range(num_layers)))
    if last >= num_layers:
        raise ValueError(f"layers: parameters={last}, but the stack has {num_layers} layers")
    for layer in map(config.of_layer, range(min(num_layers, len(config.pattern)))):
        name = layer.attention_layer
        cls = attention_class(layer)
        feed_forward_class(layer)  # ValueError for an unknown name
        if not (causal or cls.bidirectional):
            raise ValueError(
                f"attention_layer {name!r} sees only earlier tokens; an encoder needs another one"
            )
        if layer.positions != config.positions and encoding.has("embed"):
            raise ValueError(
                f"layers: positions {config.positions!r} are added to the embeddings, so that no "
                "layer can leave them out; take others, such as 'rotary'"
            )
        hooks = [hook for hook in POSITION_HOOKS if encoding_class(layer).has(hook)]
        is_applied |= bool(cls.position_hooks)
        if cls.position_hooks and not set(hooks) <= set(cls.position_hooks):
            raise ValueError(
                f"attention_layer {name!r} cannot apply positions {layer.positions!r}; take "
                f"encodings that have only {', '.join(cls.position_hooks)}, or positions 'none'"
            )
    if not is_applied and any(map(encoding.has, POSITION_HOOKS)):
        raise ValueError(
            f"positions {config.positions!r} are applied by no layer: attention_layer "
            f"{config.attention_layer!r} knows the order of tokens; set positions to 'none'"
        )


def count_parameters(tree: Any) -> int:
    """Number of parameters in a tree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def count_active(config: TransformerConfig, params: Any) -> int:
    """Number of parameters that one token uses, fewer than all if a layer routes tokens, from the
    parameters or their shapes."""
    total = 0.0
    for name, leaf in named_leaves(params).items():
        share = 1.0
        match = re.search(r"layer_(\d+)/feed_forward/(.+)", name)
        if match:
            layer = config.of_layer(int(match[1]))
            share = feed_forward_class(layer).active_share(layer, match[2])
        total += share * leaf.size
    return round(total)
