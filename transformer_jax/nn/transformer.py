# SPDX-License-Identifier: Apache-2.0
"""Encoder and decoder stacks (section 3.1), the residual connection around each sublayer, and
rematerialization of layers.

B sentences, N rows (while decoding, the beams of B sentences), T tokens, S source tokens, D model.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer_jax.errors import UserError
from transformer_jax.nn import ring_attention
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import Cache, EncoderOutput, Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.layer_scan import apply_first_layer, is_stacked, scan_layers
from transformer_jax.nn.layers import attention_class, check_layers, feed_forward_class
from transformer_jax.nn.norms import final_norm, make_norm, real_tokens
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.sublayers import (
    POSITION_HOOKS,
    AttentionLayer,
    Features,
    LayerPart,
    Sequences,
    Stream,
    at_layer,
)
from transformer_jax.registry import Registry, file_of, require_pair, require_shape


class Residual(LayerPart):
    """Residual stream: how sublayers read it and write to it; base class of the entries of
    `model.residual`.

    A stack calls `enter` once, `read` and `write` around each sublayer, and `leave` once. This
    class is the residual connection of the paper, with norm and dropout (sections 3.1, 5.4):

    post:      LayerNorm(x + Dropout(Sublayer(x)))              the paper
    pre:       x + Dropout(Sublayer(LayerNorm(x)))              Xiong et al. 2020
    sandwich:  x + LayerNorm(Dropout(Sublayer(LayerNorm(x))))   Ding et al. 2021

    LayerNorm is the config's `norm`. A stream of another shape [N, T, ..., D] has its axes in
    `axes`; hooks and patches follow them.

    Example:
      >>> y = sublayer(residual.read(stream))
      >>> stream = residual.write(stream, y, deterministic)

    Attributes:
      of_stack: True in the module that enters and leaves; it needs no parameters of sublayers.
      normalizes: False: `read` returns the stream as it is (`model.first_norm`).
    """

    config: TransformerConfig
    of_stack: bool = False
    normalizes: bool = True

    axes: ClassVar[tuple[str, ...]] = ("position", "feature")

    def setup(self) -> None:
        placement = self.config.norm_placement
        if placement in ("pre", "sandwich") and self.normalizes:
            self.norm_before = make_norm(self.config)
        if placement in ("post", "sandwich"):
            self.norm_after = make_norm(self.config)
        self.dropout = Dropout.of(self.config, "dropout_rate")

    def enter(self, x: Features) -> Stream:
        """Makes the stream of embedded tokens; here, x itself."""
        return x

    def read(self, stream: Stream) -> Features:
        """Returns the sublayer's input: the stream, normalized unless the placement is "post" or
        `normalizes` is False."""
        if self.config.norm_placement == "post" or not self.normalizes:
            return stream
        return self.norm_before(stream)

    def write(self, stream: Stream, y: Features, deterministic: bool) -> Stream:
        """Adds the sublayer's output y to the stream, in the dtype of the stream; without
        `residual_connections`, y takes its place."""
        y = self.to_add(y, deterministic)
        skipped = stream if self.config.residual_connections else jnp.zeros_like(stream)
        after = skipped + y
        if self.config.norm_placement == "post":
            after = self.norm_after(after)
        return after.astype(stream.dtype)

    def leave(self, stream: Stream) -> Features:
        """Makes the stack's output of the stream, before the final norm."""
        return stream

    def to_add(self, y: Features, deterministic: bool) -> Features:
        """Applies dropout to a sublayer's output, and the norm after it of a "sandwich"."""
        y = self.dropout(y, deterministic)
        return self.norm_after(y) if self.config.norm_placement == "sandwich" else y

    # Layers of users call them by these names too.
    before = read
    after = write


RESIDUALS: Registry[type[Residual]] = Registry("model.residual", {"add": Residual})


def residual_class(config: TransformerConfig) -> type[Residual]:
    """Class that `config.residual` names; ValueError if there is none."""
    return RESIDUALS.find(config.residual)


class Block(LayerPart):
    """Layer of a stack: self-attention, cross-attention and feed-forward, each in its residual
    connection; base class of the entries of `model.block`.

    Attributes:
      config: of the layer (`TransformerConfig.of_layer`).
      attends_to_encoder: False leaves out cross-attention, as in encoders and in GPT.
      depth: number of layers of the stack. `nn.sublayers.layer_place` has the layer's index.
    """

    config: TransformerConfig
    attends_to_encoder: bool = True
    depth: int = 1

    def setup(self) -> None:
        residual = residual_class(self.config)
        num_sublayers = (3 if self.has_cross_attention else 2) * self.depth
        self.self_attention = attention_class(self.config)(self.config, num_sublayers)
        self.self_attention_residual = residual(self.config, normalizes=self.config.first_norm)
        if self.has_cross_attention:
            self.cross_attention = MultiHeadAttention(self.config, num_sublayers)
            self.cross_attention_residual = residual(self.config)
        self.feed_forward = feed_forward_class(self.config)(self.config, num_sublayers)
        self.feed_forward_residual = residual(self.config)

    @property
    def has_cross_attention(self) -> bool:
        """Returns True if cross-attention is a sublayer of its own."""
        return self.attends_to_encoder

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> Cache:
        """Empty cache of the layer, as of `AttentionLayer.init_cache`."""
        return attention_class(config).init_cache(config, rows, max_length)

    def share(self, stream: Stream) -> Any:
        """Computes what the first layer shares with all (`AttentionLayer.share`)."""
        if attention_class(self.config).share is AttentionLayer.share:
            return None
        return self.self_attention.share(self.self_attention_residual.read(stream))

    def remember(self, encoded: EncoderOutput) -> Memory:
        """Computes this layer's keys and values of the encoder's output."""
        return Memory.of(*self.cross_attention.keys_values(encoded.features), encoded.visible)

    def __call__(
        self,
        stream: Stream,
        sequences: Sequences,
        memory: Memory | None,
        deterministic: bool,
        cache: Cache | None = None,
    ) -> tuple[Stream, Cache | None]:
        """Returns the stream after the layer, and the cache grown by T."""
        shape = (*stream.shape[:2], self.config.d_model)  # of what sublayers read and return
        x = self._read(self.self_attention_residual, stream, shape)
        layer = self.self_attention
        result = layer.self_attend(x, sequences, deterministic, cache)
        y, grown = _checked(layer, "self_attend", result, "(y [N, T, D], cache)", shape, cache)
        stream = self._write(self.self_attention_residual, stream, y, deterministic)

        if memory is not None:
            x = self._read(self.cross_attention_residual, stream, shape)
            y = self.cross_attention.cross_attend(x, memory, deterministic)
            stream = self._write(self.cross_attention_residual, stream, y, deterministic)

        x = self._read(self.feed_forward_residual, stream, shape)
        y = self.feed_forward(x, deterministic, sequences.real)
        require_shape(self.feed_forward, "__call__", y, shape)
        return self._write(self.feed_forward_residual, stream, y, deterministic), grown

    def _read(self, residual: Residual, stream: Stream, shape: tuple[int, ...]) -> Features:
        return require_shape(residual, "read", residual.read(stream), shape)

    def _write(
        self, residual: Residual, stream: Stream, y: Features, deterministic: bool
    ) -> Stream:
        written = residual.write(stream, y, deterministic)
        return require_shape(residual, "write", written, stream.shape)


class MergedBlock(Block):
    """Layer of a decoder that attends to its past and to the source in one softmax, with the same
    projections (T5Gemma 2, 2025); it has the parameters of a layer without a source.

    Only the keys of the past have positions.

    Raises:
      ValueError: the attention layer or the positions cannot do that.
    """

    divides_tokens: ClassVar[bool] = False

    def setup(self) -> None:
        c = self.config
        hooks = [hook for hook in POSITION_HOOKS if encoding_class(c).has(hook)]
        if attention_class(c) is not MultiHeadAttention or not {*hooks} <= {"rotate"}:
            raise ValueError(
                "block 'merged' needs attention_layer 'multi_head' and positions that are rotary, "
                f"added to embeddings or 'none', not {c.attention_layer!r} and {c.positions!r}"
            )
        super().setup()

    @property
    def has_cross_attention(self) -> bool:
        return False

    def remember(self, encoded: EncoderOutput) -> Memory:
        key, value = self.self_attention.keys_values(encoded.features)
        return Memory.of(key, value, encoded.visible)

    def __call__(
        self,
        stream: Stream,
        sequences: Sequences,
        memory: Memory | None,
        deterministic: bool,
        cache: Cache | None = None,
    ) -> tuple[Stream, Cache | None]:
        sequences = sequences.replace(memory=memory)
        return super().__call__(stream, sequences, None, deterministic, cache)


DecoderLayer = Block  # layers of users are subclasses by this name too

BLOCKS: Registry[type[Block]] = Registry(
    "model.block", {"sequential": Block, "merged": MergedBlock}
)


def block_class(config: TransformerConfig) -> type[Block]:
    """Class that `config.block` names; ValueError if there is none."""
    return BLOCKS.find(config.block)


def init_caches(
    config: TransformerConfig, num_layers: int, rows: int, max_length: int
) -> tuple[Cache, ...]:
    """Empty caches of a stack, one for each layer."""
    layers = map(config.of_layer, range(num_layers))
    return tuple(block_class(layer).init_cache(layer, rows, max_length) for layer in layers)


def undivided_reason(config: TransformerConfig) -> str | None:
    """Says why devices cannot divide the tokens of a stack's rows; None if they can."""
    if not residual_class(config).divides_tokens:
        return f"residual {config.residual!r} needs all tokens of a row on one device"
    for layer in map(config.of_layer, range(len(config.pattern))):
        if not block_class(layer).divides_tokens:
            return f"block {layer.block!r} needs all tokens of a row on one device"
        if not attention_class(layer).divides_tokens:
            name = layer.attention_layer
            return f"attention_layer {name!r} needs all tokens of a row on one device"
        reason = feed_forward_class(layer).undivided_reason(layer)
        reason = reason or ring_attention.unsupported_reason(layer)
        if reason:
            return reason
    return None


class Stack(nn.Module):
    """Base class of encoders and decoders: layers, whose parameters may be stacked
    (`nn.layer_scan`) or used by several layers (`model.layers`)."""

    config: TransformerConfig
    num_layers: int
    attends_to_encoder: bool = False

    causal: ClassVar[bool] = True

    def setup(self) -> None:
        c = self.config
        check_layers(c, self.num_layers, self.causal)
        owners = [c.owner_of_layer(i) for i in range(self.num_layers)]
        blocks = {}
        for owner in sorted(set(owners)):
            layer = c.of_layer(owner)
            cls = block_class(layer)
            blocks[owner] = cls(
                layer, self.attends_to_encoder, self.num_layers, name=f"layer_{owner}"
            )
        self.layers = [blocks[owner] for owner in owners]
        self.residual = residual_class(c)(c)
        self.final_norm = final_norm(c)

    def remember(self, encoded: EncoderOutput) -> tuple[Memory, ...]:
        """Computes each layer's keys and values of the encoder's output, for a search."""
        memory = []
        for i, layer in enumerate(self.layers):
            with at_layer(i, self.num_layers):
                memory.append(layer.remember(encoded))
        return tuple(memory)

    def apply_layers(
        self,
        x: Features,
        sequences: Sequences,
        encoded: EncoderOutput | tuple[Memory, ...],
        deterministic: bool,
        caches: tuple[Cache, ...] = (),
    ) -> tuple[Features, tuple[Cache, ...]]:
        """Output of the stack for embedded tokens, and the layers' caches grown by T.

        Args:
          sequences: their positions and mask; with caches the mask is None.
          encoded: the encoder's output, or the memory from `remember`; empty without an encoder.
          caches: one for each layer; empty to attend only within x.
        """
        grown: list[Cache | None] = []
        with real_tokens(sequences.real):
            residual = getattr(self, "residual", None)  # a subclass may set up its layers alone
            stream = x
            if residual is not None:
                axes = [None] * (len(residual.axes) - 1)
                stream = require_shape(residual, "enter", residual.enter(x), (*x.shape[:2], *axes))
            with at_layer(0, self.num_layers):
                shared = apply_first_layer(self, lambda layer, stream: layer.share(stream), stream)
            sequences = sequences.replace(shared=shared)
            if is_stacked(self):

                def apply(layer: Block, stream: Array) -> Array:
                    memory = layer.remember(encoded) if isinstance(encoded, EncoderOutput) else None
                    return _apply_block(layer, stream, sequences, memory, deterministic)[0]

                stream = scan_layers(self, apply, stream)
            else:
                memory = self.remember(encoded) if isinstance(encoded, EncoderOutput) else encoded
                for i, layer in enumerate(self.layers):
                    layer_memory = memory[i] if memory else None
                    cache = caches[i] if caches else None
                    with at_layer(i, self.num_layers):
                        inputs = sequences, layer_memory, deterministic
                        stream, cache = _apply_block(layer, stream, *inputs, cache=cache)
                    grown.append(cache)
            left = stream if residual is None else residual.leave(stream)
            x = require_shape(residual, "leave", left, x.shape)
            x = x if self.final_norm is None else self.final_norm(x)
        return x, tuple(cache for cache in grown if cache is not None)


def _apply_block(
    layer: Any, stream: Stream, *inputs: Any, cache: Cache | None = None
) -> tuple[Stream, Cache | None]:
    """Applies a layer, and checks what it returns."""
    result = layer(stream, *inputs, cache)
    return _checked(layer, "__call__", result, "(stream, cache)", stream.shape, cache)


def _checked(
    component: Any, method: str, result: Any, parts: str, shape: Sequence[int], cache: Cache | None
) -> tuple[Array, Cache | None]:
    """Returns what a method of a component returned, if it is a pair of an array of this shape and,
    if the component got a cache, a cache; UserError otherwise."""
    y, grown = require_pair(component, method, result, parts)
    require_shape(component, method, y, shape)
    if cache is not None and grown is None:
        raise UserError(
            f"{method} of {file_of(component)} returned no cache; it must return the one that it "
            "got, grown by the tokens"
        )
    return y, grown


class Encoder(Stack):
    """Stack of layers in which every token sees all others."""

    causal: ClassVar[bool] = False

    def __call__(self, x: Features, sequences: Sequences, deterministic: bool) -> Features:
        return self.apply_layers(x, sequences, (), deterministic)[0]


class Decoder(Stack):
    """Stack of causal layers, with an encoder or, as in GPT, without. Its parameters are not
    stacked while decoding with a cache."""

    attends_to_encoder: bool = True

    def __call__(
        self,
        x: Features,
        sequences: Sequences,
        encoded: EncoderOutput | tuple[Memory, ...] = (),
        deterministic: bool = True,
        caches: tuple[Cache, ...] = (),
    ) -> tuple[Features, tuple[Cache, ...]]:
        """Output for embedded tokens, and the caches; arguments as of `apply_layers`."""
        return self.apply_layers(x, sequences, encoded, deterministic, caches)


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
        if inside or not isinstance(context.module, Block) or context.method_name != "__call__":
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
