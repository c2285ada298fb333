# SPDX-License-Identifier: Apache-2.0
"""Base classes of the sublayers of a Transformer layer: attention layers and feed-forward layers.

Stacks, models, caches, hooks and plans know a sublayer only by these classes; `nn.layers` has the
registries. N rows (while decoding, the beams of B sentences), T tokens, D model.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.errors import UserError
from transformer_jax.nn import per_device
from transformer_jax.nn.cache import Cache, Memory, Recent
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.parameters import PARAMETERS, Parameter
from transformer_jax.nn.positions import PositionEncoding

Features = Float[Array, "N T D"]
"""Vectors of the tokens in the residual stream, or in a sublayer."""

Stream = Float[Array, "N T ... D"]
"""The residual stream, between sublayers (`model.residual`)."""

POSITION_HOOKS = ("rotate", "bias", "logit_bias", "extra_values")
"""Hooks of position encodings that an attention layer calls."""


class Sequences(struct.PyTreeNode):
    """Positions and mask of the T tokens in each row, for the sublayers.

    Attributes:
      positions: [N, T], from 0 in each packed sentence.
      mask: [N, 1, T, T]; None with a cache, which has its own, and where devices divide the
        tokens, whose order is then any.
      segments: segment ids that the mask was made from, if any.
      real: [N, T], False for padding; None: every token is real. While prompts of unequal lengths
        are read into a cache, a recurrent state passes over the padding.
      shared: what the stack's first layer shares with all layers (`AttentionLayer.share`).
      tokens: [N, T], their ids; None if the model has none.
      memory: keys and values of the source that self-attention reads, too (`MergedBlock`).
    """

    encoding: PositionEncoding
    positions: Int[Array, "N T"]
    mask: Bool[Array, "#N 1 T T"] | None
    segments: Segments | None = None
    real: Bool[Array, "N T"] | None = None
    shared: Any = None
    tokens: Int[Array, "N T"] | None = None
    memory: Memory | None = None

    @classmethod
    def packed(
        cls,
        encoding: PositionEncoding,
        positions: Int[Array, "N T"],
        segment_ids: Int[Array, "N T"],
        tokens: Int[Array, "N T"] | None = None,
        causal: bool | None = None,
    ) -> "Sequences":
        """Sentences packed into rows, with a look-ahead mask if `causal`; None: as the encoding."""
        is_causal = encoding.causal if causal is None else causal
        segments = Segments(segment_ids, segment_ids, is_causal)
        mask = segments.mask() if per_device.axis("sequence") is None else None
        return cls(encoding, positions, mask, segments, segment_ids > 0, tokens=tokens)

    def look_back(
        self, x: Shaped[Array, "N T ..."], count: int, recent: Recent | None = None
    ) -> tuple[list[Shaped[Array, "N T ..."]], Recent | None]:
        """Looks back at x of the tokens before each token, as a causal convolution does.

        Args:
          x: a value of each of the T tokens.
          count: number of tokens to look back.
          recent: what a cache holds of the tokens before, of the same count; None without a cache.

        Returns:
          x of each token, of the token before it, ..., of `count` tokens before it, zeros before
          the start of its sentence; and `recent` for the tokens after.
        """
        if recent is None:
            row = jnp.pad(x, [(0, 0), (count, 0), *[(0, 0)] * (x.ndim - 2)])
        else:
            row, recent = recent.append(x, self.real)
        values = [x]
        for back in range(1, count + 1):
            shifted = row[:, count - back : count - back + x.shape[1]]
            inside = (self.positions >= back).reshape(*x.shape[:2], *[1] * (x.ndim - 2))
            values.append(jnp.where(inside, shifted, 0))
        return values, recent


@dataclasses.dataclass(frozen=True)
class LayerPlace:
    """Place of a layer in its stack: its index from 0, which is traced in a scan
    (`nn.layer_scan`), and the number of layers."""

    index: int | Int[Array, ""]
    depth: int


def layer_place() -> LayerPlace:
    """Place of the layer that is being computed, for all modules in it. RuntimeError outside."""
    place = current_place()
    if place is None:
        raise RuntimeError("layer_place() is called outside of the layers of a stack")
    return place


def current_place() -> LayerPlace | None:
    """As `layer_place`; None outside of layers."""
    return _place.get()


@contextlib.contextmanager
def at_layer(index: int | Int[Array, ""], depth: int) -> Iterator[None]:
    """Context in which a stack computes one of its layers."""
    token = _place.set(LayerPlace(index, depth))
    try:
        yield
    finally:
        _place.reset(token)


_place: ContextVar[LayerPlace | None] = ContextVar("place", default=None)


class LayerPart(nn.Module):
    """Layer of a stack, or a module in it; base class of what the section `model` names for them.

    Attributes:
      parameters: rows of the table of parameters, which the definition of the class adds to it.
      reads: config fields, "section.field", that this class reads and others may not.
      options: config fields of its own, a frozen dataclass.
      divides_tokens: whether it works where devices divide the tokens of a row, which may be in any
        order: it reads their positions and segment ids.
    """

    divides_tokens: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    reads: ClassVar[Collection[str]] = ()
    options: ClassVar[type | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        PARAMETERS.extend(vars(cls).get("parameters", ()))


class Sublayer(LayerPart):
    """A part of a layer with a residual connection around it.

    Attributes:
      config: of the layer (`TransformerConfig.of_layer`).
      num_sublayers: of the stack; initialization "gpt2" scales the last matrix by it.
    """

    config: TransformerConfig
    num_sublayers: int = 1

    def expose(
        self,
        name: str,
        x: Float[Array, "B ..."],
        axes: tuple[str, ...],
        **positions: Int[Array, "_ _"] | None,
    ) -> Float[Array, "B ..."]:
        """Returns x, or what callers replace it by: the hook point "PATH.name" (`nn.hooks`).

        Args:
          name: of the hook point, after the path of this module.
          axes: names of its axes after the first. Those of tokens are "position", or "query" and
            "key"; callers see "head" as the first.
          **positions: of the tokens along an axis, by its name; None: those of the stack, or in
            cross-attention of the source.
        """
        return x

    def exposes(self, *names: str) -> bool:
        """Returns True if a caller reads or replaces one of these hook points, so that the layer
        must compute it."""
        return False


class AttentionLayer(Sublayer):
    """Mixes the tokens of a sequence; base class of the entries of `model.attention_layer`.

    Attributes:
      position_hooks: hooks of position encodings that it calls; an encoding with others is refused.
        Empty: it knows the order of tokens without an encoding, as recurrent layers do.
      bidirectional: whether it works in an encoder, where tokens see later ones.
      divides_tokens: here False by default.
    """

    position_hooks: ClassVar[Collection[str]] = POSITION_HOOKS
    bidirectional: ClassVar[bool] = True
    divides_tokens: ClassVar[bool] = False

    def self_attend(
        self, x: Features, sequences: Sequences, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Features, Cache | None]:
        """Mixes the T tokens of each row, which continue those of a cache; returns the output, and
        the cache grown by T."""
        raise NotImplementedError

    def share(self, x: Features) -> Any:
        """Computes what all layers of the stack read as `sequences.shared`, such as the values of
        the first layer, which alone is asked; x is its input, as of `self_attend`."""
        return None

    @classmethod
    def init_cache(cls, config: TransformerConfig, rows: int, max_length: int) -> Cache:
        """Empty cache for one beam of each of `rows` sentences of up to `max_length` tokens.

        Raises:
          UserError: the layer has no cache.
        """
        raise UserError(
            f"config.model.attention_layer: {cls.__name__} has no `init_cache`, so that it cannot "
            "decode: give it one, or only train and score with it"
        )


class FeedForwardLayer(Sublayer):
    """Computes each token by itself; base class of the entries of `model.feed_forward`."""

    @classmethod
    def active_share(cls, config: TransformerConfig, path: str) -> float:
        """Share of an array that one token uses: less than 1 in a layer that routes. `path` is that
        of the array inside the layer."""
        return 1.0

    @classmethod
    def undivided_reason(cls, config: TransformerConfig) -> str | None:
        """Says why devices cannot divide the tokens of a row, which are then in another order;
        None if they can."""
        return None

    def __call__(
        self, x: Features, deterministic: bool, real: Bool[Array, "N T"] | None = None
    ) -> Features:
        """Computes the sublayer's output. `real` is False for padding, which a layer that routes
        tokens gives no place; None: every token is real."""
        raise NotImplementedError
