# SPDX-License-Identifier: Apache-2.0
"""Losses and scores that the built-in tasks share, on packed rows.

B batch, T slots of a row, M predictions of a row.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.data.batches.loss_masks import loss_mask_features
from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import (
    Pair,
    PairScore,
    check_pair_lengths,
    row_bytes,
    score_pairs,
)
from transformer_jax.losses import Distillation, LossOptions, TokenLosses, symmetric_kl, token_sums
from transformer_jax.metrics import padding_sums
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import shift_right
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, Frozen, LossSums, Params, Supervised
from transformer_jax.tokenization import Frame, SpecialTokens, Tokenizer, Tokenizers

logger = logging.getLogger(__name__)

ContextTarget = tuple[Sequence[int], Sequence[int]]
"""Tokens of a context, at least one, and of the target after it."""


def text_frame(body: Any, tokenizers: Tokenizers) -> Frame:
    """Special tokens around a text, or a pair of texts, that is the only input of a model."""
    specials = tokenizers.specials("text")
    return specials.decoder if isinstance(body, DecoderOnly) else specials.encoder


def batch_shapes(lengths: Mapping[str, int], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the arrays of a packed batch."""
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32)
        for feature, length in lengths.items()
        for name in (feature, f"{feature}_segment_ids", f"{feature}_positions")
    }


def row_inputs(batch: Batch, feature: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids of a feature, int32 [B, T] each: the inputs of a model."""
    return batch[feature], batch[f"{feature}_positions"], batch[f"{feature}_segment_ids"]


def packed_loss(
    batch: Batch, read: Sequence[str], found: TokenLosses, counted: jax.Array
) -> LossSums:
    """Loss sums of a packed batch over the predictions that count, with the sums that metrics need.

    Args:
      read: features whose tokens the model reads.
      found: losses of the predictions, [B, M] each.
      counted: bool [B, M], False where there is nothing to predict.
    """
    weights = counted.astype(jnp.float32)
    sums = token_sums(found, weights) | padding_sums(batch, read)
    return (found.losses * weights).sum(), weights.sum(), sums


@dataclasses.dataclass(frozen=True)
class SupervisedLoss:
    """Training loss of predictions that have labels: in training, with R-Drop or a teacher, if the
    options have them.

    Attributes:
      model: the model.
      options: settings of the loss.
      read: features whose tokens the model reads.
      method: of the model: "unprojected", or "__call__" if that alone gives the logits.
    """

    model: Any
    options: LossOptions
    read: Sequence[str]
    method: str = "unprojected"

    def __call__(
        self,
        params: Params,
        batch: Batch,
        supervised: Supervised,
        rng: jax.Array | None,
        frozen: Frozen,
    ) -> LossSums:
        """Loss sums over the predictions that count (`packed_loss`).

        Args:
          supervised: the model's inputs for the batch, and the labels.
          rng: key for dropout; None: evaluation, without R-Drop and teacher.
          frozen: has the parameters of the teacher, if there is one.
        """
        inputs, labels, counted = supervised
        if rng is not None and self.options.r_drop:
            token_losses = self._r_drop(params, inputs, labels, rng)
            return packed_loss(batch, self.read, token_losses, counted)
        predicted = apply_model(self.model, params, *inputs, rng=rng, method=self.method)
        loss = self.options.token_loss
        teacher = self.options.teacher
        if rng is None or teacher is None:
            token_losses = loss.of(predicted, labels, exact=rng is None)
        else:
            assert isinstance(loss, Distillation)
            taught = teacher.predictions(frozen["teacher"], batch, inputs, self.method)
            token_losses = loss.of_taught(predicted, taught, labels)
        return packed_loss(batch, self.read, token_losses, counted)

    def _r_drop(
        self, params: Params, inputs: Sequence[jax.Array], labels: jax.Array, rng: jax.Array
    ) -> TokenLosses:
        """Losses of all predictions by R-Drop, [B, M] each (Liang et al. 2021, equation 4, halved).

        They are the mean cross-entropy of two passes with different dropout, and alpha / 4 of the
        symmetric divergence of their distributions.
        """
        # The copies of a row are neighbors, so that both are on the device of the row.
        *inputs, labels = (jnp.repeat(rows, 2, axis=0) for rows in (*inputs, labels))
        predicted = apply_model(self.model, params, *inputs, rng=rng, method=self.method)
        is_hidden = isinstance(predicted, Unprojected)
        logits = predicted.logits(exact=False) if is_hidden else predicted
        of_copies = self.options.token_loss.of_logits(logits, labels)
        divergence = symmetric_kl(logits[::2], logits[1::2])
        mean = (of_copies.losses[::2] + of_copies.losses[1::2]) / 2
        losses = mean + self.options.r_drop / 4 * divergence
        return TokenLosses(losses, of_copies.nll[::2], of_copies.correct[::2])


def row_scores(found: TokenLosses, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log P of each row in nats, float32 [B], and whether greedy search gives it, bool [B].

    Args:
      found: unsmoothed losses of the predictions, [B, M] each.
      counted: bool [B, M], the predictions that count.
    """
    return -(found.nll * counted).sum(axis=1), (found.correct | ~counted).all(axis=1)


@dataclasses.dataclass(frozen=True)
class CausalLosses:
    """Losses and scores of a decoder-only model.

    Rows have the features "input", "target" (the input shifted by one token) and, if not all
    targets count, "counted": 1 for each target that does.

    Attributes:
      model: maps tokens to logits of the next token.
      options: settings of the training loss.
    """

    model: DecoderOnly
    options: LossOptions
    read: ClassVar[tuple[str, ...]] = ("input",)

    def init(self, rng: jax.Array) -> Params:
        """Initial parameters of the model."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row)["params"]

    def __call__(
        self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen
    ) -> LossSums:
        """Training loss of the targets that count."""
        loss = SupervisedLoss(self.model, self.options, self.read)
        return loss(params, batch, self.supervised(batch), rng, frozen)

    def supervised(self, batch: Batch) -> Supervised:
        """The model's inputs, and the next tokens."""
        return Supervised(row_inputs(batch, "input"), batch["target"], _counted(batch))

    def log_probs(self, params: Params, batch: Batch, rng: jax.Array | None) -> jax.Array:
        """log P of each target that counts in nats, float32 [B, T]; 0 elsewhere."""
        token_losses = self._plain_losses(params, batch, rng)
        return jnp.where(_counted(batch), -token_losses.losses, 0.0)  # `nll` has no gradient

    def score(
        self, params: Params, pairs: Sequence[ContextTarget], context: int, batch_size: int
    ) -> list[PairScore]:
        """Score of each target given its context.

        Args:
          pairs: contexts and targets as tokens.
          context: tokens that the model sees at once. Of longer pairs the last tokens are read,
            with a warning that names the pair's number.
          batch_size: largest number of pairs scored at once.

        Raises:
          UserError: a target is longer than `context`.
        """
        rows: dict[int, Features] = {}
        for i, (source, target) in enumerate(pairs):
            if target:
                read, counted = _fit_context(context, source, target, f"line {i + 1}")
                loss_mask = [False] * len(read) + [True] * len(counted)
                rows[i] = loss_mask_features([*read, *counted], loss_mask)
        config = self.model.config
        size = functools.partial(row_bytes, config, config.vocab_size)
        scores = score_pairs(self.scores, params, [*rows.values()], batch_size, size)
        by_pair = dict(zip(rows, scores, strict=True))
        # An empty target is certain: log P = 0.
        return [by_pair.get(i, PairScore(0.0, True)) for i in range(len(pairs))]

    @functools.cached_property
    def scores(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        """Compiled (parameters, packed batch) -> `row_scores` of the targets that count."""

        def scores(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            return row_scores(self._plain_losses(params, batch), _counted(batch))

        return jax.jit(scores, compiler_options=platform.compiler_options())

    def _plain_losses(
        self, params: Params, batch: Batch, rng: jax.Array | None = None
    ) -> TokenLosses:
        """Negative log-likelihoods of all targets, [B, T] each."""
        inputs = row_inputs(batch, "input")
        predicted = apply_model(self.model, params, *inputs, rng=rng, method="unprojected")
        return self.options.unregularized.token_loss.of(predicted, batch["target"])


def split_tokens(tokenizer: Tokenizer, source: str, target: str) -> ContextTarget:
    """Tokens of a source, with the first token before them, and tokens of the target.

    Both texts are encoded together, as the tokenizer would encode them in running text. The target
    begins with the first token that differs from those of the source alone: white space at the end
    of the source belongs to it, because tokens begin with it, and so does a token across the
    boundary ("c" and "at" are one token), which would otherwise be predicted at no cost.
    """
    together = tokenizer.encode(source + target)
    alone = tokenizer.encode(source.rstrip()) if target else together
    pairs = enumerate(zip(together, alone, strict=False))
    shared = min(len(together), len(alone))
    count = next((i for i, (token, other) in pairs if token != other), shared)
    return [tokenizer.specials.first, *together[:count]], together[count:]


def _fit_context(
    context: int, read: Sequence[int], counted: Sequence[int], name: str
) -> ContextTarget:
    """Drops the first tokens of the context that the model does not see."""
    if len(counted) > context:
        raise UserError(
            f"score: the target of {name} has {len(counted)} tokens, more than the model sees at "
            f"once (data.max_length is {context}); make it shorter"
        )
    room = context + 1 - len(counted)
    if len(read) > room:
        logger.warning(
            "%s has %d tokens, more than the model sees at once (data.max_length is %d); its first "
            "%d are not read",
            *(name, len(read) + len(counted) - 1, context, len(read) - room),
        )
    return read[-room:], counted


def _counted(batch: Batch) -> jax.Array:
    """Mask of the targets that count, bool [B, T]."""
    return batch.get("counted", batch["target_segment_ids"]) > 0


@dataclasses.dataclass(frozen=True)
class Seq2SeqLosses:
    """Losses and scores of an encoder-decoder, on the features "source" and "target".

    Attributes:
      model: maps source and shifted target to logits.
      specials: special tokens of the targets.
      options: settings of the training loss.
      predicts: for each token of the targets' vocabulary the token that is predicted in its place;
        None: the token itself.
    """

    model: Any
    specials: SpecialTokens
    options: LossOptions
    predicts: tuple[int, ...] | None = None
    read: ClassVar[tuple[str, ...]] = ("source", "target")

    def init(self, rng: jax.Array) -> Params:
        """Initial parameters of the model."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, *[row] * 6)["params"]

    def __call__(
        self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen
    ) -> LossSums:
        """Training loss of each target token."""
        loss = SupervisedLoss(self.model, self.options, self.read)
        return loss(params, batch, self.supervised(batch), rng, frozen)

    def supervised(self, batch: Batch) -> Supervised:
        """The model's inputs, and the tokens of the target that it predicts: all but the forced
        ones at the beginning."""
        target, positions, segment_ids = row_inputs(batch, "target")
        shifted = shift_right(target, positions, self.specials.start)
        inputs = (*row_inputs(batch, "source"), shifted, positions, segment_ids)
        labels = target if self.predicts is None else jnp.array(self.predicts, jnp.int32)[target]
        counted = (segment_ids > 0) & (positions >= len(self.specials.translation.head))
        return Supervised(inputs, labels, counted)

    def score(self, params: Params, pairs: Sequence[Pair], batch_size: int) -> list[PairScore]:
        """Score of each target given its source.

        Args:
          pairs: sources and targets as tokens, with special tokens.
          batch_size: largest number of pairs scored at once.

        Raises:
          UserError: a sequence exceeds the positions that the model knows, or the available memory.
        """
        config = self.model.config
        check_pair_lengths(config, pairs)
        size = functools.partial(row_bytes, config, config.target_vocab_size)
        return score_pairs(self.scores, params, pairs, batch_size, size)

    @functools.cached_property
    def scores(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        """Compiled (parameters, packed batch) -> `row_scores` of the targets."""

        def scores(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            inputs, labels, counted = self.supervised(batch)
            predicted = apply_model(self.model, params, *inputs, method="unprojected")
            token_losses = self.options.unregularized.token_loss.of(predicted, labels)
            return row_scores(token_losses, counted)

        return jax.jit(scores, compiler_options=platform.compiler_options())
