# SPDX-License-Identifier: Apache-2.0
"""Losses of tokens by name: cross-entropy with label smoothing (section 5.4), and distillation.

The logits of a batch are by far its largest array: `tiled_token_losses` computes them for one tile
of the vocabulary at a time and never holds all.

N tokens, D model, V vocabulary, W tokens of a tile.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from transformer_jax.errors import UserError
from transformer_jax.fields import Configurable
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.nn.ops import einsum, soft_cap
from transformer_jax.nn.traced_numbers import is_zero, traced_number
from transformer_jax.ranges import Range
from transformer_jax.registry import Registry
from transformer_jax.runtime import platform
from transformer_jax.runtime.accelerators import accelerator_of

Logits = Float[Array | np.ndarray, "*B V"]
Labels = Int[Array | np.ndarray, "*B"]
Losses = Float[Array, "*B"]

_TILE_SHARE = 1 / 64
"""Largest share of a device's memory for the logits of a tile: little beside the activations saved
for the backward pass, and for most batches thousands of columns, so that products stay large."""
_UNKNOWN_MEMORY = 2**34  # bytes, of devices that are not in the table
_LOWEST = float(jnp.finfo(jnp.float32).min)


class TokenLosses(NamedTuple):
    """Losses of each token. Only `losses` has gradients.

    Attributes:
      losses: what training minimizes: cross-entropy with the smoothed label, in nats, or another
        loss (`TOKEN_LOSSES`).
      nll: cross-entropy with the label itself, in nats.
      correct: True if the label is the argmax (the first of equal logits).
    """

    losses: Losses
    nll: Losses
    correct: Bool[Array, "*B"]


@dataclasses.dataclass(frozen=True)
class LossOptions(Configurable):
    """Settings of a training loss.

    Attributes:
      label_smoothing: eps, the probability spread over the vocabulary (section 5.4).
      loss_tiles: number of tiles that the vocabulary is split into; None: chosen by
        `tiled_token_losses`.
      r_drop: alpha, weight of R-Drop, which runs each row twice with different dropout; 0: off.
      z_loss: weight of the square of the logits' log-normalizer.
      loss: entry of `TOKEN_LOSSES`.
      teacher: gives the predictions that the loss compares with (`tasks.teachers`); None: none.
    """

    label_smoothing: float
    loss_tiles: int | None
    r_drop: float
    z_loss: float
    loss: str = "cross_entropy"
    teacher: Any = None

    @property
    def smoothing(self) -> Any:
        """`label_smoothing`; in a program of several replicas, that of the traced one."""
        return traced_number("train.label_smoothing", self.label_smoothing)

    @property
    def unregularized(self) -> "LossOptions":
        """Options of the plain negative log-likelihood."""
        return LossOptions(0.0, self.loss_tiles, self.r_drop, 0.0)

    @property
    def token_loss(self) -> "TokenLoss":
        return TOKEN_LOSSES.find(self.loss)(self)


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """Training loss of each token, or of each label of a classifier; an entry of `TOKEN_LOSSES`.

    Subclasses define `losses`. A loss that should not hold all logits at once overrides `of_hidden`
    too.

    Attributes:
      reads: fields of the config that only this loss and its like read.
      options: dataclass of its own fields, `config.options_of(CLASS)`; None: none.
    """

    config: LossOptions
    reads: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[type[Any] | None] = None

    def losses(self, logits: Logits, labels: Labels) -> Losses:
        """Training loss of each token."""
        raise NotImplementedError

    def of_logits(self, logits: Logits, labels: Labels) -> TokenLosses:
        """Computes the losses of tokens with these logits.

        Raises:
          UserError: `losses` does not return one loss per label.
        """
        fixed = jax.lax.stop_gradient(logits)
        losses = self.losses(logits, labels)
        if losses.shape != labels.shape:
            raise UserError(
                f"train.loss {self.config.loss!r} returns an array of shape {losses.shape} for "
                f"labels of shape {labels.shape}; return one loss per label, without a mean"
            )
        return TokenLosses(losses, cross_entropy(fixed, labels), _is_argmax(fixed, labels))

    def of_hidden(self, predicted: Unprojected, labels: Labels, exact: bool = True) -> TokenLosses:
        """Computes the losses of tokens with these final hidden states."""
        return self.of_logits(predicted.logits(exact), labels)

    def of(self, predicted: Unprojected | Array, labels: Labels, exact: bool = True) -> TokenLosses:
        """Computes the losses of hidden states (`of_hidden`) or of logits (`of_logits`)."""
        if isinstance(predicted, Unprojected):
            return self.of_hidden(predicted, labels, exact)
        return self.of_logits(predicted, labels)


def training_logits(predicted: Any) -> Any:
    """Logits of hidden states, as training computes them; others are returned as they are."""
    return predicted.logits(exact=False) if isinstance(predicted, Unprojected) else predicted


class CrossEntropy(TokenLoss):
    """Cross-entropy with label smoothing and z-loss, tile by tile; R-Drop adds to it."""

    reads: ClassVar[tuple[str, ...]] = (
        *("train.label_smoothing", "train.z_loss", "train.loss_tiles", "train.r_drop"),
    )

    def losses(self, logits: Logits, labels: Labels) -> Losses:
        return cross_entropy(logits, labels, self.config.smoothing, self.config.z_loss)

    def of_hidden(self, predicted: Unprojected, labels: Labels, exact: bool = True) -> TokenLosses:
        c = self.config
        return tiled_token_losses(predicted, labels, c.smoothing, c.z_loss, c.loss_tiles, exact)


@dataclasses.dataclass(frozen=True)
class DistillationOptions:
    """Options of the loss `distillation`.

    Attributes:
      teacher: workdir of the run that teaches, or its address. Its vocabulary must be the same, and
        is used here unless `train.init_from` names another run; its model may have other sizes and
        components.
      weight: weight of the divergence from the teacher; the cross-entropy has the rest.
      temperature: T, which divides the logits of both before the softmax. Higher values teach more
        about unlikely tokens.
      top_k: before training, store the teacher's k most likely tokens at each position of the
        training data in the workdir, so that steps need no teacher. All other tokens count as one
        class. None: run the teacher in every step.
    """

    teacher: str | None = None
    weight: Annotated[float, Range(0, 1)] = 0.5
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    top_k: Annotated[int, Range(1, 65_536)] | None = None


class TopPredictions(NamedTuple):
    """Most likely tokens of a teacher at each position."""

    tokens: Int[Array, "*B k"]
    log_probs: Float[Array, "*B k"]

    @classmethod
    def of_logits(cls, logits: Logits, count: int, temperature: float) -> "TopPredictions":
        log_probs, tokens = jax.lax.top_k(jax.nn.log_softmax(logits / temperature), count)
        return cls(tokens, log_probs)


class Distillation(CrossEntropy):
    """Cross-entropy mixed with the divergence from a teacher's predictions (Hinton et al. 2015).

    The loss of a token is (1 - w) CE + w T^2 KL(teacher || student), in training alone: validation
    reports the cross-entropy, so that its losses compare with those of other runs.
    """

    reads: ClassVar[tuple[str, ...]] = ("train.label_smoothing", "train.z_loss", "train.loss_tiles")
    options = DistillationOptions

    def of_taught(self, predicted: Any, taught: Any, labels: Labels) -> TokenLosses:
        """Computes the training losses of tokens from hidden states or logits of the model, and
        those of its teacher or the teacher's most likely tokens."""
        c = self.config
        options = c.options_of(DistillationOptions)
        weight = options.weight
        is_hidden = isinstance(predicted, Unprojected)
        count = (c.loss_tiles or _num_tiles(predicted)) if is_hidden else 1
        if count > 1:
            hard = self.of_hidden(predicted, labels, exact=False)
            divergence = tiled_divergence(predicted, taught, options.temperature, count)
        else:
            predicted, taught = map(training_logits, (predicted, taught))
            compare = top_k_divergence if isinstance(taught, TopPredictions) else teacher_divergence
            divergence = compare(predicted, taught, options.temperature)
            hard = self.of_logits(predicted, labels)
        return hard._replace(losses=(1 - weight) * hard.losses + weight * divergence)


TOKEN_LOSSES: Registry[type[TokenLoss]] = Registry(
    "train.loss", {"cross_entropy": CrossEntropy, "distillation": Distillation}
)


def token_losses(
    logits: Logits, labels: Labels, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> TokenLosses:
    """Computes the losses of tokens; arguments as of `cross_entropy`."""
    fixed = jax.lax.stop_gradient(logits)
    losses = cross_entropy(logits, labels, label_smoothing, z_loss)
    return TokenLosses(losses, cross_entropy(fixed, labels), _is_argmax(fixed, labels))


def token_sums(
    predictions: TokenLosses, weights: Num[Array | np.ndarray, "*B"]
) -> dict[str, Num[Array, ""]]:
    """Sums over a batch: "tokens" (total weight), "nll" (negative log-likelihood, nats) and
    "correct" (labels that are the argmax)."""
    return {
        "tokens": jnp.sum(weights),
        "nll": (predictions.nll * weights).sum(),
        "correct": (predictions.correct * weights).sum(),
    }


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def cross_entropy(
    logits: Logits, labels: Labels, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Losses:
    """Cross-entropy of each token with its smoothed label, in nats.

    The label has probability 1 - eps, and eps is spread over the whole vocabulary including the
    label, eps / V each, as in optax and PyTorch. Neither one-hot nor smoothed targets are built.

    Args:
      label_smoothing: eps, in [0, 1).
      z_loss: weight of log^2 Z, where Z is the softmax's denominator (Chowdhery et al. 2022,
        section 5); it keeps logits from growing together.
    """
    return _losses(logits, labels, label_smoothing, z_loss)[0]


@cross_entropy.defjvp
def _cross_entropy_tangent(
    eps: float, z_loss: float, primals: tuple[Logits, Labels], tangents: tuple[Logits, Any]
) -> tuple[Losses, Losses]:
    """Tangent in one pass over the vocabulary:
    d loss / d logits = (1 + 2 z_loss log Z) softmax(logits) - smoothed target."""
    logits, labels = primals
    losses, log_normalizer = _losses(logits, labels, eps, z_loss)
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == labels[..., None]
    target = jnp.where(is_label, 1 - eps + eps / vocab_size, eps / vocab_size)
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    if z_loss:
        probabilities *= 1 + 2 * z_loss * log_normalizer[..., None]
    return losses, ((probabilities - target) * tangents[0]).sum(-1)


def symmetric_kl(one: Logits, other: Logits) -> Losses:
    """KL(P || Q) + KL(Q || P) in nats, for the softmax distributions P and Q of two logits.

    This is the sum of (p - q)(log p - log q) over the vocabulary. As p - q sums to 0, log p and log
    q can be replaced by the logits.
    """
    difference = jax.nn.softmax(one) - jax.nn.softmax(other)
    return (difference * (one - other)).sum(axis=-1)


def teacher_divergence(student: Logits, teacher: Logits, temperature: float = 1.0) -> Losses:
    """T^2 KL(P || Q) in nats, where P and Q are the softmax distributions of the teacher's and the
    student's logits divided by T (Hinton et al. 2015, section 2).

    The factor T^2 keeps the size of the gradient, which shrinks as 1 / T^2. The teacher has no
    gradient.
    """
    q = student / temperature
    p = jax.lax.stop_gradient(teacher) / temperature
    cross = (jax.nn.softmax(p) * (p - q)).sum(axis=-1)  # log P - log Q, less the normalizers
    normalizers = jax.nn.logsumexp(q, axis=-1) - jax.nn.logsumexp(p, axis=-1)
    return temperature**2 * (cross + normalizers)


def top_k_divergence(student: Logits, teacher: TopPredictions, temperature: float = 1.0) -> Losses:
    """T^2 KL(P || Q) as of `teacher_divergence`, with all tokens except the teacher's k most likely
    ones as a single class. It is a lower bound, and equal if k is the size of the vocabulary."""
    q = student / temperature
    log_p = teacher.log_probs
    normalizer = jax.nn.logsumexp(q, axis=-1)
    log_q = jnp.take_along_axis(q, teacher.tokens, axis=-1) - normalizer[..., None]
    divergence = (jnp.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    if log_p.shape[-1] < q.shape[-1]:
        others = jnp.put_along_axis(q, teacher.tokens, -jnp.inf, axis=-1, inplace=False)
        p_rest = jnp.maximum(1 - jnp.exp(log_p).sum(axis=-1), 0)
        log_q_rest = jax.nn.logsumexp(others, axis=-1) - normalizer
        # xlogy: p_rest may be 0, where p log p is 0.
        divergence += jax.scipy.special.xlogy(p_rest, p_rest) - p_rest * log_q_rest
    return temperature**2 * divergence


def _losses(logits: Logits, labels: Labels, eps: float, z_loss: float) -> tuple[Losses, Losses]:
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    expected = (1 - eps) * label_logit
    if not is_zero(eps):
        expected += eps * logits.mean(axis=-1)
    losses = log_normalizer - expected
    if z_loss:
        losses += z_loss * jnp.square(log_normalizer)
    return losses, log_normalizer


def _is_argmax(logits: Logits, labels: Labels) -> Bool[Array, "*B"]:
    """Returns True where the label is the argmax: its logit exceeds all before it and is not below
    any after it. On a CPU this takes a sixth of the time of `jnp.argmax`."""
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    is_before = jnp.arange(logits.shape[-1]) < labels[..., None]
    return jnp.where(is_before, logits < label_logit, logits <= label_logit).all(axis=-1)


def tiled_token_losses(
    predicted: Unprojected,
    labels: Labels,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    tiles: int | None = None,
    exact: bool = True,
) -> TokenLosses:
    """Computes `token_losses` for one tile of the vocabulary after another.

    The backward pass computes the logits again. Only first, reverse-mode derivatives are defined.

    Args:
      tiles: number of tiles. With 1 all logits are held, and derivatives are those of
        `cross_entropy`. None: 1 on CPUs, where the second computation costs more than the memory;
        elsewhere the power of two (which divides a padded vocabulary) that keeps a tile's logits
        within 1/64 of a device's memory, and at least 2, because a tile is read once and all logits
        several times.
      exact: False: round the logits to the dtype of their product, for speed in training.
    """
    count = tiles or _num_tiles(predicted)
    if count == 1 or isinstance(predicted.table, Int8Matrix):
        return token_losses(predicted.logits(exact), labels, label_smoothing, z_loss)
    flat = predicted.replace(x=predicted.x.reshape(-1, predicted.x.shape[-1]))
    static_eps = label_smoothing if isinstance(label_smoothing, float | int) else None
    options = _TileOptions(count, static_eps, z_loss, exact)
    losses = _tiled_losses(options, flat, labels.reshape(-1), jnp.float32(label_smoothing))
    return TokenLosses(*(array.reshape(labels.shape) for array in losses))


def _num_tiles(predicted: Unprojected) -> int:
    if platform.is_cpu():
        return 1
    logits_bytes = 4 * predicted.x[..., 0].size * predicted.vocab_size
    accelerator = accelerator_of(platform.target().kind)
    memory = accelerator.memory if accelerator else _UNKNOWN_MEMORY
    least = math.ceil(logits_bytes / platform.sharded_over.value / (memory * _TILE_SHARE))
    return max(2, 1 << (least - 1).bit_length())


class _TileOptions(NamedTuple):
    """Arguments of `tiled_token_losses`."""

    tiles: int
    eps: float | None  # None if it is traced
    z_loss: float
    exact: bool


class _Tile(NamedTuple):
    """Part of the vocabulary: tokens, their rows of the table, and their biases."""

    tokens: Int[Array, "*T W"]
    table: Float[Array, "*T W D"]
    bias: Float[Array, "*T W"]

    def logits(self, x: Float[Array, "N D"], cap: float | None, exact: bool) -> Float[Array, "N W"]:
        with jax.named_scope("logits"):
            logits = einsum("nd,wd->nw", x, self.table, x.dtype, exact) + self.bias
            if cap is None:
                return logits
            return jnp.where(jnp.isneginf(self.bias), -jnp.inf, soft_cap(logits, cap))


def _split_into_tiles(count: int, predicted: Unprojected, rows: int | None = None) -> _Tile:
    """All tiles, stacked along a leading axis.

    Tiles are contiguous, or, if devices divide the table, tile i has the tokens {i, i + count,
    i + 2 count, ...}, so that its rows are divided, too: that costs a transposition of the table
    and of its gradient. The vocabulary is padded with tokens whose logits are -inf.

    Args:
      rows: pad the vocabulary to a multiple of `count` that is at least this, and at least the rows
        of the table.
    """
    rows = max(rows or 0, len(predicted.table))
    rows += -rows % count

    def split(array: Array) -> Array:
        padding = [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1)
        return _stack_tiles(jnp.pad(array, padding), count)

    table = split(predicted.table.astype(predicted.dtype))
    tokens = _stack_tiles(jnp.arange(rows), count)
    bias = jnp.float32(0) if predicted.bias is None else split(predicted.bias)
    return _Tile(tokens, table, jnp.where(tokens < predicted.vocab_size, bias, -jnp.inf))


def _stack_tiles(array: Num[Array, "V ..."], count: int) -> Num[Array, "T W ..."]:
    if platform.sharded_over.value == 1:
        return array.reshape(count, -1, *array.shape[1:])
    return jnp.moveaxis(array.reshape(-1, count, *array.shape[1:]), 1, 0)


def _join_tiles(tiles: Num[Array, "T W ..."]) -> Num[Array, "V ..."]:
    if platform.sharded_over.value > 1:
        tiles = jnp.moveaxis(tiles, 0, 1)
    return tiles.reshape(-1, *tiles.shape[2:])


def tiled_divergence(
    student: Unprojected, teacher: Unprojected | TopPredictions, temperature: float, tiles: int
) -> Losses:
    """Computes `teacher_divergence` for one tile of the vocabulary after another; with a teacher's
    most likely tokens, `top_k_divergence` for one part of the positions after another.

    The backward pass computes the logits again.

    Args:
      teacher: those of the teacher, with the same vocabulary, or its most likely tokens.
    """
    if isinstance(teacher, TopPredictions):
        return _top_k_divergence_by_parts(student, teacher, temperature, tiles)
    models = [m.replace(x=m.x.reshape(-1, m.x.shape[-1])) for m in (student, teacher)]
    rows = max(len(model.table) for model in models)  # tables may be padded differently
    tiled = [_split_into_tiles(tiles, model, rows) for model in models]

    def scaled_logits(model: Unprojected, tile: _Tile) -> Float[Array, "N W"]:
        return tile.logits(model.x.astype(model.dtype), model.cap, exact=False) / temperature

    @jax.checkpoint
    def read(stats: _DivergenceStats, tiles: Sequence[_Tile]) -> tuple[_DivergenceStats, None]:
        q, p = map(scaled_logits, models, tiles)
        p = jax.lax.stop_gradient(p)
        return stats.add(q, p, tiles[0].tokens < student.vocab_size), None

    initial = _DivergenceStats(*jnp.zeros((5, len(models[0].x))))
    initial = initial._replace(q_max=initial.q_max + _LOWEST, p_max=initial.p_max + _LOWEST)
    stats, _ = jax.lax.scan(read, initial, tiled)
    return temperature**2 * stats.divergence.reshape(student.x.shape[:-1])


def _top_k_divergence_by_parts(
    student: Unprojected, teacher: TopPredictions, temperature: float, parts: int
) -> Losses:
    @jax.checkpoint
    def divergence_at(position: tuple[Array, TopPredictions]) -> Losses:
        x, top = position
        return top_k_divergence(student.replace(x=x).logits(exact=False), top, temperature)

    by_position = jax.tree.map(lambda x: jnp.moveaxis(x, -2, 0), (student.x, teacher))
    size = -(-len(by_position[0]) // parts)
    return jnp.moveaxis(jax.lax.map(divergence_at, by_position, batch_size=size), 0, -1)


class _DivergenceStats(NamedTuple):
    """Statistics of each position's scaled logits q (student) and p (teacher), over part of the
    vocabulary.

    Attributes:
      q_max, p_max: largest logits.
      q_sum, p_sum: sums of exp(q - q_max) and exp(p - p_max).
      cross: sum of exp(p - p_max) (p - q).
    """

    q_max: Float[Array, " N"]
    q_sum: Float[Array, " N"]
    p_max: Float[Array, " N"]
    p_sum: Float[Array, " N"]
    cross: Float[Array, " N"]

    def add(
        self, q: Float[Array, "N W"], p: Float[Array, "N W"], is_token: Bool[Array, " W"]
    ) -> "_DivergenceStats":
        q_max = jax.lax.stop_gradient(jnp.maximum(self.q_max, q.max(axis=1)))
        p_max = jnp.maximum(self.p_max, p.max(axis=1))
        p_exp = jnp.exp(p - p_max[:, None])
        p_scale = jnp.exp(self.p_max - p_max)
        return _DivergenceStats(
            q_max=q_max,
            q_sum=self.q_sum * jnp.exp(self.q_max - q_max) + jnp.exp(q - q_max[:, None]).sum(1),
            p_max=p_max,
            p_sum=self.p_sum * p_scale + p_exp.sum(axis=1),
            cross=self.cross * p_scale + jnp.where(is_token, p_exp * (p - q), 0).sum(axis=1),
        )

    @property
    def divergence(self) -> Losses:
        """KL(P || Q) after the last tile."""
        normalizers = self.q_max + jnp.log(self.q_sum) - self.p_max - jnp.log(self.p_sum)
        return self.cross / self.p_sum + normalizers


class _LogitStats(NamedTuple):
    """Statistics of each position's logits, over part of the vocabulary (online softmax).

    Attributes:
      maximum: largest logit; above -inf, so that differences are defined.
      argmax: token of the largest logit, the first if several are equal.
      exp_sum: sum of exp(logit - maximum).
      label_logit: logit of the label; 0 if the label is in another part.
      sum: sum of the logits.
    """

    maximum: Float[Array, "*N"]
    argmax: Int[Array, "*N"]
    exp_sum: Float[Array, "*N"]
    label_logit: Float[Array, "*N"]
    sum: Float[Array, "*N"]


def _merge_stats(a: _LogitStats, b: _LogitStats) -> _LogitStats:
    """Merges the statistics of two parts of the vocabulary (Milakov and Gimelshein 2018)."""
    a_is_larger = a.maximum > b.maximum
    is_equal = a.maximum == b.maximum
    argmax_unless_a = jnp.where(is_equal, jnp.minimum(a.argmax, b.argmax), b.argmax)
    scale = jnp.exp(-jnp.abs(a.maximum - b.maximum))  # of the part with the smaller maximum
    return _LogitStats(
        maximum=jnp.maximum(a.maximum, b.maximum),
        argmax=jnp.where(a_is_larger, a.argmax, argmax_unless_a),
        exp_sum=jnp.where(
            a_is_larger, a.exp_sum + scale * b.exp_sum, scale * a.exp_sum + b.exp_sum
        ),
        label_logit=a.label_logit + b.label_logit,
        sum=a.sum + b.sum,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled_losses(
    options: _TileOptions, predicted: Unprojected, labels: Labels, eps: Float[Array, ""]
) -> TokenLosses:
    """Computes `token_losses` of hidden states [N, D], tile by tile, with label smoothing eps."""
    return _tiled_forward(options, predicted, labels, eps)[0]


def _tiled_forward(
    options: _TileOptions, predicted: Unprojected, labels: Labels, traced_eps: Float[Array, ""]
) -> tuple[TokenLosses, tuple[Unprojected, Labels, Losses, Array]]:
    """Forward pass: the losses, and for the backward pass the arguments and the log-normalizer."""
    count, static_eps, z_loss, exact = options
    eps: Any = traced_eps if static_eps is None else static_eps
    size = predicted.vocab_size
    x = predicted.x.astype(predicted.dtype)
    empty = _LogitStats(*(jnp.asarray(number) for number in (_LOWEST, size, 0.0, 0.0, 0.0)))

    def read(stats: _LogitStats, tile: _Tile) -> tuple[_LogitStats, None]:
        """Adds a tile to the statistics, in one pass over its logits."""
        logits = tile.logits(x, predicted.cap, exact)
        of_token = _LogitStats(
            maximum=jnp.maximum(logits, _LOWEST),
            argmax=jnp.broadcast_to(tile.tokens, logits.shape),
            exp_sum=jnp.ones_like(logits),
            label_logit=jnp.where(tile.tokens == labels[:, None], logits, 0),
            sum=jnp.where(tile.tokens < size, logits, 0),
        )
        return _merge_stats(stats, jax.lax.reduce(of_token, empty, _merge_stats, (1,))), None

    initial = jax.tree.map(lambda number: jnp.full(len(x), number), empty)
    stats, _ = jax.lax.scan(read, initial, _split_into_tiles(count, predicted))
    log_normalizer = stats.maximum + jnp.log(stats.exp_sum)
    losses = log_normalizer - (1 - eps) * stats.label_logit - eps * stats.sum / size
    if z_loss:
        losses += z_loss * jnp.square(log_normalizer)
    correct = (stats.argmax == labels) & ~jnp.isnan(stats.maximum)  # NaN has no argmax
    nll = log_normalizer - stats.label_logit
    return TokenLosses(losses, nll, correct), (predicted, labels, log_normalizer, traced_eps)


def _tiled_backward(
    options: _TileOptions, saved: tuple[Unprojected, Labels, Losses, Array], cotangents: TokenLosses
) -> tuple[Unprojected, None, None]:
    """Backward pass: the gradient of `cross_entropy`, through the logits of one tile at a time."""
    count, static_eps, z_loss, exact = options
    predicted, labels, log_normalizer, traced_eps = saved
    eps: Any = traced_eps if static_eps is None else static_eps
    size = predicted.vocab_size
    dtype = predicted.dtype
    x = predicted.x.astype(dtype)

    def add(x_gradient: Array, tile: _Tile) -> tuple[Array, tuple[Array, Array]]:
        is_label = tile.tokens == labels[:, None]
        target = jnp.where(is_label, 1 - eps + eps / size, eps / size)
        logits = tile.logits(x, predicted.cap, exact)
        probabilities = jnp.exp(logits - log_normalizer[:, None])
        if z_loss:
            probabilities *= 1 + 2 * z_loss * log_normalizer[:, None]
        gradient = probabilities - target
        if predicted.cap is not None:
            gradient *= 1 - jnp.square(logits / predicted.cap)  # the derivative of the cap
        gradient = jnp.where(tile.tokens < size, gradient, 0) * cotangents.losses[:, None]
        with jax.named_scope("logits"):
            x_gradient += einsum("nw,wd->nd", gradient, tile.table, dtype)
            # As of any parameter (`ops.einsum`).
            exact_gradient = not platform.is_cpu()
            table_gradient = einsum("nw,nd->wd", gradient, x, dtype, exact_gradient)
        return x_gradient, (table_gradient, gradient.sum(axis=0))

    def join(tiles: Array, like: Array) -> Array:
        return _join_tiles(tiles)[: len(like)].astype(like.dtype)

    zeros = jnp.zeros(x.shape, jnp.float32)
    tiles = _split_into_tiles(count, predicted)
    x_gradient, (table_gradient, bias_gradient) = jax.lax.scan(add, zeros, tiles)
    gradient = predicted.replace(
        x=x_gradient.astype(predicted.x.dtype),
        table=join(table_gradient, predicted.table),
        bias=None if predicted.bias is None else join(bias_gradient, predicted.bias),
    )
    return gradient, None, None


_tiled_losses.defvjp(_tiled_forward, _tiled_backward)
