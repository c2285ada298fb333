"""Cross-entropy with label smoothing (section 5.4), and with a term that keeps logits small."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.ops import capped, einsum
from transformer_jax.runtime import platform
from transformer_jax.runtime.accelerators import accelerator_of

Logits = Float[Array | np.ndarray, "*B V"]
Labels = Int[Array | np.ndarray, "*B"]
Losses = Float[Array, "*B"]


class TokenLosses(NamedTuple):
    """What a loss finds of each token. Gradients go through `losses` alone.

    Attributes:
      losses: cross-entropy against the smoothed label, in nats.
      nll: against the label itself.
      correct: whether the label is the argmax, of equal logits the first.
    """

    losses: Losses
    nll: Losses
    correct: Bool[Array, "*B"]


def token_losses(
    logits: Logits, labels: Labels, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> TokenLosses:
    """The losses of tokens; arguments as of `cross_entropy`."""
    fixed = jax.lax.stop_gradient(logits)
    losses = cross_entropy(logits, labels, label_smoothing, z_loss)
    return TokenLosses(losses, cross_entropy(fixed, labels), _is_argmax(fixed, labels))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def cross_entropy(
    logits: Logits, labels: Labels, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Losses:
    """Cross-entropy of each token against its smoothed label, in nats.

    The label keeps probability 1 - eps, and eps is spread over the whole vocabulary, eps / V each,
    the label included, as in optax and PyTorch. Neither one-hot nor smoothed targets are built.

    Args:
      logits: one for each token of the vocabulary.
      labels: the right tokens.
      label_smoothing: eps, in [0, 1).
      z_loss: weight of log^2 Z, where Z is the softmax's denominator (Chowdhery et al. 2022,
        section 5): logits that grow, all alike, cost something.
    """
    return _losses(logits, labels, label_smoothing, z_loss)[0]


@cross_entropy.defjvp
def _cross_entropy_tangent(
    eps: float, z_loss: float, primals: tuple[Logits, Labels], tangents: tuple[Logits, Any]
) -> tuple[Losses, Losses]:
    """d loss / d logits = (1 + 2 z_loss log Z) softmax(logits) - smoothed target, in one pass over
    the vocabulary."""
    logits, labels = primals
    losses, log_normalizer = _losses(logits, labels, eps, z_loss)
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == labels[..., None]
    target = jnp.where(is_label, 1 - eps + eps / vocab_size, eps / vocab_size)
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    if z_loss:
        probabilities *= 1 + 2 * z_loss * log_normalizer[..., None]
    return losses, ((probabilities - target) * tangents[0]).sum(-1)


def symmetric_divergence(one: Logits, other: Logits) -> Losses:
    """KL(P || Q) + KL(Q || P) in nats, of the distributions P and Q that these logits make.

    That is the sum of (p - q)(log p - log q) over the vocabulary; as p - q sums to 0, the logits
    may stand for the logarithms.
    """
    apart = jax.nn.softmax(one) - jax.nn.softmax(other)
    return (apart * (one - other)).sum(axis=-1)


def _losses(logits: Logits, labels: Labels, eps: float, z_loss: float) -> tuple[Losses, Losses]:
    """The losses, and the logarithm of the softmax's denominator."""
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    expected = (1 - eps) * of_label
    if eps:
        expected += eps * logits.mean(axis=-1)
    losses = log_normalizer - expected
    if z_loss:
        losses += z_loss * jnp.square(log_normalizer)
    return losses, log_normalizer


def _is_argmax(logits: Logits, labels: Labels) -> Bool[Array, "*B"]:
    """Whether each label's logit is above all before it and not below those after it. On a CPU
    these comparisons take a sixth of the time of `jnp.argmax`."""
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    is_before = jnp.arange(logits.shape[-1]) < labels[..., None]
    return jnp.where(is_before, logits < of_label, logits <= of_label).all(axis=-1)


# FOLDED tiled_losses: Cross-entropy without all logits: what `losses` computes, one tile of the
# vocabulary at a time. The logits of a batch are by far its largest array: GPT-2 has 50,257 for
# each token. N tokens, D model, V vocabulary, W tokens of a tile.


_SHARE = 1 / 64
"""Most of a device's memory that a tile's logits take: little beside what the layers keep for the
backward pass, and for most batches thousands of columns, so that the products stay large."""

_UNKNOWN_MEMORY = 2**34  # bytes, of devices that are not in the table
_LOWEST = float(jnp.finfo(jnp.float32).min)


def projected_losses(
    predicted: Unprojected,
    labels: Labels,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    tiles: int | None = None,
) -> TokenLosses:
    """As `token_losses`, of logits that are computed for one tile of the vocabulary after another,
    and once more in the backward pass. First derivatives alone exist, and backward alone.

    Args:
      predicted: what the logits are made of.
      labels: the right tokens.
      label_smoothing, z_loss: as of `cross_entropy`.
      tiles: how many. With one, all logits exist, and derivatives as of `cross_entropy`. None: one
        on CPUs, where computing twice costs more than memory; elsewhere the power of two (which
        divides a padded vocabulary) that keeps a tile's logits within 1/64 of a device's memory,
        and two at least: a tile is read once, all logits several times.
    """
    count = tiles or _tiles_for(4 * labels.size * predicted.vocab_size)
    if count == 1 or isinstance(predicted.table, Int8Matrix):
        return token_losses(predicted.logits(), labels, label_smoothing, z_loss)
    flat = predicted.replace(x=predicted.x.reshape(-1, predicted.x.shape[-1]))
    found = _tiled_losses(count, label_smoothing, z_loss, flat, labels.reshape(-1))
    return TokenLosses(*(each.reshape(labels.shape) for each in found))


def _tiles_for(num_bytes: int) -> int:
    if platform.is_cpu():
        return 1
    known = accelerator_of(platform.target().kind)
    of_device = known.memory if known else _UNKNOWN_MEMORY
    least = math.ceil(num_bytes / platform.num_sharding_devices() / (of_device * _SHARE))
    return max(2, 1 << (least - 1).bit_length())


class _Tile(NamedTuple):
    """A part of the vocabulary: tokens, their rows of the table, and their biases."""

    tokens: Int[Array, "*T W"]
    table: Float[Array, "*T W D"]
    bias: Float[Array, "*T W"]

    def logits(self, x: Float[Array, "N D"], cap: float | None) -> Float[Array, "N W"]:
        """Those of its tokens."""
        with jax.named_scope("logits"):
            logits = einsum("nd,wd->nw", x, self.table, x.dtype) + self.bias
            if cap is None:
                return logits
            return jnp.where(jnp.isneginf(self.bias), -jnp.inf, capped(logits, cap))


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
    """What is known of each token's logits after some of them.

    Attributes:
      highest: the largest; above -inf, so that differences are defined.
      argmax: its token; of several the first.
      total: the sum of exp(logit - highest).
      of_label: the label's, or 0 where it is not among them.
      sum: of all.
    """

    highest: Float[Array, "*N"]
    argmax: Int[Array, "*N"]
    total: Float[Array, "*N"]
    of_label: Float[Array, "*N"]
    sum: Float[Array, "*N"]


def _together(one: _Read, other: _Read) -> _Read:
    """What is known after two parts of the logits (Milakov and Gimelshein 2018)."""
    is_first = one.highest > other.highest
    is_equal = one.highest == other.highest
    of_equals = jnp.where(is_equal, jnp.minimum(one.argmax, other.argmax), other.argmax)
    less = jnp.exp(-jnp.abs(one.highest - other.highest))
    return _Read(
        highest=jnp.maximum(one.highest, other.highest),
        argmax=jnp.where(is_first, one.argmax, of_equals),
        total=jnp.where(is_first, one.total + less * other.total, less * one.total + other.total),
        of_label=one.of_label + other.of_label,
        sum=one.sum + other.sum,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _tiled_losses(
    count: int, eps: float, z_loss: float, predicted: Unprojected, labels: Labels
) -> TokenLosses:
    """`token_losses` of features [N, D]."""
    return _read_tiles(count, eps, z_loss, predicted, labels)[0]


def _read_tiles(
    count: int, eps: float, z_loss: float, predicted: Unprojected, labels: Labels
) -> tuple[TokenLosses, tuple[Unprojected, Labels, Losses]]:
    """The losses, and what the backward pass needs: arguments and log-normalizer."""
    size, x = predicted.vocab_size, predicted.x.astype(predicted.dtype)
    nothing = _Read(*(jnp.asarray(each) for each in (_LOWEST, size, 0.0, 0.0, 0.0)))

    def read(before: _Read, tile: _Tile) -> tuple[_Read, None]:
        """In one pass over the tile's logits."""
        logits = tile.logits(x, predicted.cap)
        each = _Read(
            highest=jnp.maximum(logits, _LOWEST),
            argmax=jnp.broadcast_to(tile.tokens, logits.shape),
            total=jnp.ones_like(logits),
            of_label=jnp.where(tile.tokens == labels[:, None], logits, 0),
            sum=jnp.where(tile.tokens < size, logits, 0),
        )
        return _together(before, jax.lax.reduce(each, nothing, _together, (1,))), None

    fresh = jax.tree.map(lambda each: jnp.full(len(x), each), nothing)
    done, _ = jax.lax.scan(read, fresh, _divided(count, predicted))
    log_normalizer = done.highest + jnp.log(done.total)
    losses = log_normalizer - (1 - eps) * done.of_label - eps * done.sum / size
    if z_loss:
        losses += z_loss * jnp.square(log_normalizer)
    correct = (done.argmax == labels) & ~jnp.isnan(done.highest)
    found = TokenLosses(losses, log_normalizer - done.of_label, correct)
    return found, (predicted, labels, log_normalizer)


def _tiled_gradient(
    count: int,
    eps: float,
    z_loss: float,
    kept: tuple[Unprojected, Labels, Losses],
    cotangents: TokenLosses,
) -> tuple[Unprojected, None]:
    """As the tangent of `cross_entropy`, times what the logits are made of."""
    predicted, labels, log_normalizer = kept
    size, dtype, x = predicted.vocab_size, predicted.dtype, predicted.x.astype(predicted.dtype)

    def add(of_x: Array, tile: _Tile) -> tuple[Array, tuple[Array, Array]]:
        is_label = tile.tokens == labels[:, None]
        target = jnp.where(is_label, 1 - eps + eps / size, eps / size)
        logits = tile.logits(x, predicted.cap)
        probabilities = jnp.exp(logits - log_normalizer[:, None])
        if z_loss:
            probabilities *= 1 + 2 * z_loss * log_normalizer[:, None]
        apart = probabilities - target
        if predicted.cap is not None:
            apart *= 1 - jnp.square(logits / predicted.cap)  # the derivative of the cap
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
