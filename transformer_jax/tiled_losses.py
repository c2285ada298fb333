"""Cross-entropy without all logits: what `losses` computes, one tile of the vocabulary at a time.

The logits of a batch are by far its largest array: GPT-2 has 50,257 for each token.

N tokens, D model, V vocabulary, W tokens of a tile.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.losses import Labels, Losses, TokenLosses, token_losses
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.products import einsum
from transformer_jax.runtime import platform

_TILE_BYTES = 2**28
"""Most bytes of a tile's logits on a device: little beside what the layers keep for the backward
pass, and for most batches still thousands of columns, so that the products stay large."""


def projected_losses(
    predicted: Unprojected, labels: Labels, label_smoothing: float = 0.0, tiles: int | None = None
) -> TokenLosses:
    """As `token_losses`, of logits that are computed for one tile of the vocabulary after another,
    and once more in the backward pass. First derivatives alone exist, and backward alone.

    Args:
      predicted: what the logits are made of.
      labels: the right tokens.
      label_smoothing: eps, in [0, 1).
      tiles: how many. With one, all logits exist, and derivatives as of `cross_entropy`. None: one
        on CPUs, where computing twice costs more than memory; elsewhere the power of two (which
        divides a padded vocabulary) that keeps a tile's logits on a device within 256 MiB.
    """
    count = tiles or _tiles_for(4 * labels.size * predicted.vocab_size)
    if count == 1 or isinstance(predicted.table, Int8Matrix):
        return token_losses(predicted.logits(), labels, label_smoothing)
    flat = predicted.replace(x=predicted.x.reshape(-1, predicted.x.shape[-1]))
    found = _tiled_losses(count, label_smoothing, flat, labels.reshape(-1))
    return TokenLosses(*(each.reshape(labels.shape) for each in found))


def _tiles_for(num_bytes: int) -> int:
    if platform.is_cpu():
        return 1
    least = math.ceil(num_bytes / platform.sharing_devices() / _TILE_BYTES)
    return 1 << (least - 1).bit_length()


class _Tile(NamedTuple):
    """A part of the vocabulary: tokens, their rows of the table, and their biases."""

    tokens: Int[Array, "*T W"]
    table: Float[Array, "*T W D"]
    bias: Float[Array, "*T W"]

    def logits(self, x: Float[Array, "N D"]) -> Float[Array, "N W"]:
        """Those of its tokens."""
        with jax.named_scope("logits"):
            return einsum("nd,wd->nw", x, self.table, x.dtype) + self.bias


def _divided(count: int, predicted: Unprojected) -> _Tile:
    """All tiles, along a leading axis.

    Tile i has the tokens {i, i + count, i + 2 count, ...}: where the rows of the table are divided
    among devices, so are those of each tile. The vocabulary is filled up to a multiple of `count`
    with tokens whose logits are -inf.
    """
    size, rows = predicted.vocab_size, len(predicted.table)

    def divided(array: Array) -> Array:
        lacking = [(0, -rows % count)] + [(0, 0)] * (array.ndim - 1)
        return jnp.moveaxis(jnp.pad(array, lacking).reshape(-1, count, *array.shape[1:]), 1, 0)

    table = divided(predicted.table.astype(predicted.dtype))
    tokens = jnp.arange(table.shape[1]) * count + jnp.arange(count)[:, None]
    bias = jnp.float32(0) if predicted.bias is None else divided(predicted.bias)
    return _Tile(tokens, table, jnp.where(tokens < size, bias, -jnp.inf))


class _Read(NamedTuple):
    """What is known of each token's logits after some tiles.

    Attributes:
      highest: the largest.
      argmax: its token; of several the first.
      total: the sum of exp(logit - highest).
      of_label: the label's, or 0 before its tile.
      sum: of all; with label smoothing alone.
    """

    highest: Float[Array, " N"]
    argmax: Int[Array, " N"]
    total: Float[Array, " N"]
    of_label: Float[Array, " N"]
    sum: Float[Array, " N"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _tiled_losses(count: int, eps: float, predicted: Unprojected, labels: Labels) -> TokenLosses:
    """`token_losses` of features [N, D]."""
    return _read_tiles(count, eps, predicted, labels)[0]


def _read_tiles(
    count: int, eps: float, predicted: Unprojected, labels: Labels
) -> tuple[TokenLosses, tuple[Unprojected, Labels, Losses]]:
    """The losses, and what the backward pass needs: arguments and log-normalizer."""
    size, x = predicted.vocab_size, predicted.x.astype(predicted.dtype)

    def read(before: _Read, tile: _Tile) -> tuple[_Read, None]:
        logits = tile.logits(x)
        highest = logits.max(axis=-1)
        is_highest = logits == highest[:, None]
        argmax = jnp.where(is_highest, tile.tokens, size).min(axis=-1)
        first = jnp.where(highest == before.highest, jnp.minimum(argmax, before.argmax), argmax)
        together = jnp.maximum(before.highest, highest)
        total = before.total * jnp.exp(before.highest - together)
        is_label = tile.tokens == labels[:, None]
        of_all = jnp.where(tile.tokens < size, logits, 0).sum(axis=-1) if eps else 0
        return _Read(
            highest=together,
            argmax=jnp.where(highest < before.highest, before.argmax, first),
            total=total + jnp.exp(logits - together[:, None]).sum(axis=-1),
            of_label=before.of_label + jnp.where(is_label, logits, 0).sum(axis=-1),
            sum=before.sum + of_all,
        ), None

    zeros = jnp.zeros(len(x))
    nothing = _Read(zeros - jnp.inf, jnp.full(len(x), size), zeros, zeros, zeros)
    done, _ = jax.lax.scan(read, nothing, _divided(count, predicted))
    log_normalizer = done.highest + jnp.log(done.total)
    losses = log_normalizer - (1 - eps) * done.of_label - eps * done.sum / size
    correct = (done.argmax == labels) & ~jnp.isnan(done.highest)
    found = TokenLosses(losses, log_normalizer - done.of_label, correct)
    return found, (predicted, labels, log_normalizer)


def _tiled_gradient(
    count: int, eps: float, kept: tuple[Unprojected, Labels, Losses], cotangents: TokenLosses
) -> tuple[Unprojected, None]:
    """As the tangent of `cross_entropy`, times what the logits are made of."""
    predicted, labels, log_normalizer = kept
    size, dtype, x = predicted.vocab_size, predicted.dtype, predicted.x.astype(predicted.dtype)

    def add(of_x: Array, tile: _Tile) -> tuple[Array, tuple[Array, Array]]:
        is_label = tile.tokens == labels[:, None]
        target = jnp.where(is_label, 1 - eps + eps / size, eps / size)
        apart = jnp.exp(tile.logits(x) - log_normalizer[:, None]) - target
        of_logits = jnp.where(tile.tokens < size, apart, 0) * cotangents.losses[:, None]
        with jax.named_scope("logits"):
            of_x += einsum("nw,wd->nd", of_logits, tile.table, dtype)
            of_table = einsum("nw,nd->wd", of_logits, x, dtype)
        return of_x, (of_table, of_logits.sum(axis=0))

    def joined(tiles: Array, like: Array) -> Array:
        rows = jnp.moveaxis(tiles, 0, 1).reshape(-1, *like.shape[1:])
        return rows[: len(like)].astype(like.dtype)

    zeros = jnp.zeros(x.shape, jnp.float32)
    of_x, (of_table, of_bias) = jax.lax.scan(add, zeros, _divided(count, predicted))
    gradient = predicted.replace(
        x=of_x.astype(predicted.x.dtype),
        table=joined(of_table, predicted.table),
        bias=None if predicted.bias is None else joined(of_bias, predicted.bias),
    )
    return gradient, None


_tiled_losses.defvjp(_read_tiles, _tiled_gradient)
