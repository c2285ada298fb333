# SPDX-License-Identifier: Apache-2.0
"""Encoder and decoder stacks (section 3.1), the residual connection around each sublayer, and
rematerialization of layers.

B sentences, N rows (while decoding, the beams of B sentences), T tokens, S source tokens, D model.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import Cache, EncoderOutput, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.layer_scan import apply_first_layer, is_stacked, scan_layers
from transformer_jax.nn.layers import attention_class, check_layers, feed_forward_class
from transformer_jax.nn.norms import final_norm, make_norm, real_tokens
from transformer_jax.nn.sublayers import AttentionLayer, Features, Sequences


class Residual(nn.Module):
    """Residual connection around a sublayer, with norm and dropout (sections 3.1, 5.4).

    post:      LayerNorm(x + Dropout(Sublayer(x)))              the paper
    pre:       x + Dropout(Sublayer(LayerNorm(x)))              Xiong et al. 2020
    sandwich:  x + LayerNorm(Dropout(Sublayer(LayerNorm(x))))   Ding et al. 2021

    LayerNorm is the config's `norm`.

    Example:
      >>> y = sublayer(residual.before(x))
      >>> x = residual.after(x, y, deterministic)
    """

    config: TransformerConfig

    def setup(self) -> None:
        placement = self.config.norm_placement
        if placement in ("pre", "sandwich"):
            self.norm_before = make_norm(self.config)
        if placement in ("post", "sandwich"):
            self.norm_after = make_norm(self.config)
        self.dropout = Dropout.of(self.config, "dropout_rate")

    def before(self, x: Features) -> Features:
        """Returns the sublayer's input: x, normalized unless the placement is "post"."""
        return x if self.config.norm_placement == "post" else self.norm_before(x)

    def after(self, x: Features, y: Features, deterministic: bool) -> Features:
        """Adds the sublayer's output y to the residual stream x, in the dtype of x; without
        `residual_connections`, y takes its place."""
        y = self.dropout(y, deterministic)
        skipped = x if self.config.residual_connections else jnp.zeros_like(x)
        match self.config.norm_placement:
            case "post":
                stream = self.norm_after(skipped + y)
            case "pre":
                stream = skipped + y
            case _:
                stream = skipped + self.norm_after(y)
        return stream.astype(x.dtype)


def intercept_residual_stream(
    change: Callable[[Array], Array],
) -> contextlib.AbstractContextManager[None]:
    """Context: inside, models pass the residual stream [B, T, D] after each sublayer through
    `change`, for example to constrain its sharding."""

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        result = method(*args, **kwargs)
        after = isinstance(context.module, Residual) and context.method_name == "after"
        return change(result) if after else result

    return nn.intercept_methods(intercept)


def _with_shared(stack: Any, x: Features, sequences: Sequences) -> Sequences:
    """Adds what the first layer shares with all layers; x is the input of the stack."""
    if attention_class(stack.layers[0].config).share is AttentionLayer.share:
        return sequences

    def share(layer: Any, x: Array) -> Any:
        return layer.self_attention.share(layer.self_attention_residual.before(x))

    return sequences.replace(shared=apply_first_layer(stack, share, x))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in its residual connection, in a stack of `depth`."""

    config: TransformerConfig
    depth: int = 1

    def setup(self) -> None:
        num_sublayers = 2 * self.depth
        self.self_attention = attention_class(self.config)(self.config, num_sublayers)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = feed_forward_class(self.config)(self.config, num_sublayers)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x: Features, sequences: Sequences, deterministic: bool) -> Features:
        y = self.self_attention_residual.before(x)
        y, _ = self.self_attention.self_attend(y, sequences, deterministic)
        x = self.self_attention_residual.after(x, y, deterministic)

        y = self.feed_forward_residual.before(x)
        y = self.feed_forward(y, deterministic, sequences.real)
        return self.feed_forward_residual.after(x, y, deterministic)


class Encoder(nn.Module):
    """Stack of encoder layers, whose parameters may be stacked (`nn.layer_scan`)."""

    config: TransformerConfig
    num_layers: int

    def setup(self) -> None:
        check_layers(self.config, self.num_layers, causal=False)
        self.layers = [
            EncoderLayer(self.config.of_layer(i), self.num_layers, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.final_norm = final_norm(self.config)

    def __call__(self, x: Features, sequences: Sequences, deterministic: bool) -> Features:
        with real_tokens(sequences.real):
            sequences = _with_shared(self, x, sequences)
            if is_stacked(self):
                x = scan_layers(self, lambda layer, x: layer(x, sequences, deterministic), x)
            else:
                for layer in self.layers:
                    x = layer(x, sequences, deterministic)
            return x if self.final_norm is None else self.final_norm(x)


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each in its residual connection.

    Attributes:
      attends_to_encoder: False leaves out cross-attention, as in GPT.
    """

    config: TransformerConfig
    attends_to_encoder: bool = True
    depth: int = 1

    def setup(self) -> None:
        num_sublayers = (3 if self.attends_to_encoder else 2) * self.depth
        self.self_attention = attention_class(self.config)(self.config, num_sublayers)
        self.self_attention_residual = Residual(self.config)
        if self.attends_to_encoder:
            self.cross_attention = MultiHeadAttention(self.config, num_sublayers)
            self.cross_attention_residual = Residual(self.config)
        self.feed_forward = feed_forward_class(self.config)(self.config, num_sublayers)
        self.feed_forward_residual = Residual(self.config)

    def remember(self, encoded: EncoderOutput) -> Memory:
        """Computes this layer's keys and values of the encoder's output."""
        return Memory.of(*self.cross_attention.keys_values(encoded.features), encoded.visible)

    def __call__(
        self,
        x: Features,
        sequences: Sequences,
        memory: Memory | None,
        deterministic: bool,
        cache: Cache | None = None,
    ) -> tuple[Features, Cache | None]:
        """Returns the layer's output and the cache grown by T."""
        y = self.self_attention_residual.before(x)
        y, cache = self.self_attention.self_attend(y, sequences, deterministic, cache)
        x = self.self_attention_residual.after(x, y, deterministic)

        if memory is not None:
            y = self.cross_attention_residual.before(x)
            y = self.cross_attention.cross_attend(y, memory, deterministic)
            x = self.cross_attention_residual.after(x, y, deterministic)

        y = self.feed_forward_residual.before(x)
        y = self.feed_forward(y, deterministic, sequences.real)
        return self.feed_forward_residual.after(x, y, deterministic), cache


class Decoder(nn.Module):
    """Stack of decoder layers, with an encoder or, as in GPT, without.

    Its parameters may be stacked (`nn.layer_scan`), but not while decoding with a cache.
    """

    config: TransformerConfig
    num_layers: int
    attends_to_encoder: bool = True

    def setup(self) -> None:
        check_layers(self.config, self.num_layers, causal=True)
        self.layers = [
            DecoderLayer(
                self.config.of_layer(i),
                self.attends_to_encoder,
                self.num_layers,
                name=f"layer_{i}",
            )
            for i in range(self.num_layers)
        ]
        self.final_norm = final_norm(self.config)

    def remember(self, encoded: EncoderOutput) -> tuple[Memory, ...]:
        """Computes each layer's keys and values of the encoder's output, for a search."""
        return tuple(layer.remember(encoded) for layer in self.layers)

    def __call__(
        self,
        x: Features,
        sequences: Sequences,
        encoded: EncoderOutput | tuple[Memory, ...] = (),
        deterministic: bool = True,
        caches: tuple[Cache, ...] = (),
    ) -> tuple[Features, tuple[Cache, ...]]:
        """Computes features of embedded tokens, and the layers' caches grown by T.

        Args:
          sequences: their positions and mask; with caches the mask is None.
          encoded: the encoder's output, or the memory from `remember`; empty without an encoder.
          caches: one for each layer; empty to attend only within x.
        """
        grown: list[Cache | None] = []
        with real_tokens(sequences.real):
            sequences = _with_shared(self, x, sequences)
            if is_stacked(self):
                x = scan_layers(self, self._layer_function(sequences, encoded, deterministic), x)
            else:
                memory = self.remember(encoded) if isinstance(encoded, EncoderOutput) else encoded
                for i, layer in enumerate(self.layers):
                    layer_memory = memory[i] if memory else None
                    cache = caches[i] if caches else None
                    x, cache = layer(x, sequences, layer_memory, deterministic, cache)
                    grown.append(cache)
            x = x if self.final_norm is None else self.final_norm(x)
        return x, tuple(cache for cache in grown if cache is not None)

    @staticmethod
    def _layer_function(
        sequences: Sequences, encoded: EncoderOutput | tuple[Memory, ...], deterministic: bool
    ) -> Callable[[DecoderLayer, Array], Array]:
        """Function of a layer and its input, for `scan_layers`."""
        assert encoded == () or isinstance(encoded, EncoderOutput)

        def apply(layer: DecoderLayer, x: Array) -> Array:
            memory = layer.remember(encoded) if isinstance(encoded, EncoderOutput) else None
            return layer(x, sequences, memory, deterministic)[0]

        return apply


_LAYERS = (EncoderLayer, DecoderLayer)

HOST = "pinned_host"
"""JAX's name of the memory in which "offload" saves results."""

POLICIES: dict[str, Any] = {
    "full": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", HOST),
}
"""Results of a layer that are saved besides its input. "full": none; "dots": products with
parameters, the most expensive to compute again; "offload": the same, in the host's memory."""

REMAT = ("none", *POLICIES)
"""Values of `train.remat`."""


def rematerialized_layers(remat: str) -> contextlib.AbstractContextManager[None]:
    """Context: inside, layers save only their input and the results that the policy names; the
    backward pass computes the rest again (Chen et al. 2016). With "none" all results are saved."""
    inside: list[nn.Module] = []

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        if inside or not isinstance(context.module, _LAYERS) or context.method_name != "__call__":
            return method(*args, **kwargs)
        flags = tuple(i for i, arg in enumerate(args, 1) if isinstance(arg, bool))
        again = nn.remat(
            lambda layer, *args: layer(*args, **kwargs),
            static_argnums=flags,
            policy=POLICIES[remat],
            # A layer without a parent is the body of a scan (`nn.layer_scan`), where XLA cannot
            # merge the two computations anyway.
            prevent_cse=context.module.parent is not None,
        )
        inside.append(context.module)  # the call below is intercepted again
        try:
            return again(context.module, *args)
        finally:
            inside.pop()

    return contextlib.nullcontext() if remat == "none" else nn.intercept_methods(intercept)
