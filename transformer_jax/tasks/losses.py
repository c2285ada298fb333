"""What tasks share: packed rows, the inputs that they make, and sums over what counts.

B batch, T slots, M predictions of a row.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.data.batches.loss_masks import loss_mask_features
from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError
from transformer_jax.inference.pairs import PairScore, row_bytes, score_pairs
from transformer_jax.losses import TokenLosses, symmetric_kl, tiled_token_losses, token_losses
from transformer_jax.metrics import padding_sums, token_sums
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, LossOptions, LossSums, Params
from transformer_jax.tokenization import Frame, SpecialTokens, Tokenizer, Tokenizers


def text_frame(body: Any, tokenizers: Tokenizers) -> Frame:
    """What stands around a text, or a pair of texts, that this model reads alone."""
    specials = tokenizers.specials("text")
    return specials.encoder if isinstance(body, EncoderOnly) else specials.decoder


def batch_shapes(lengths: Mapping[str, int], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a packed batch."""
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32)
        for feature, length in lengths.items()
        for name in (feature, f"{feature}_segment_ids", f"{feature}_positions")
    }


def row_inputs(batch: Batch, feature: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and segment ids of a feature, int32 [B, T] each, as models take them."""
    return batch[feature], batch[f"{feature}_positions"], batch[f"{feature}_segment_ids"]


def shift_right(target: jax.Array, positions: jax.Array, start: int) -> jax.Array:
    """The decoder's inputs [B, T]: `start` where a sentence starts, elsewhere the token before."""
    return jnp.where(positions == 0, start, jnp.roll(target, 1, axis=1))


def packed_loss(
    batch: Batch, read: Sequence[str], found: TokenLosses, counted: jax.Array
) -> LossSums:
    """Losses summed over the predictions that count, and what metrics are made of.

    Args:
      batch: packed rows.
      read: the features whose tokens the model reads.
      found: losses of the predictions, [B, M] each.
      counted: bool [B, M], False where there is nothing to predict.
    """
    weights = counted.astype(jnp.float32)
    sums = token_sums(found, weights) | padding_sums(batch, read)
    return (found.losses * weights).sum(), weights.sum(), sums


def row_scores(found: TokenLosses, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log P [B] in nats of the predictions [B, M] of each row that count, and whether all of them
    are the likeliest."""
    return -(found.nll * counted).sum(axis=1), (found.correct | ~counted).all(axis=1)


# FOLDED tasks.continuation_losses: The losses of a decoder-only model on texts of which all tokens
# count, or some. B batch, T slots, V vocabulary.


logger = logging.getLogger(__name__)

ContextTarget = tuple[Sequence[int], Sequence[int]]
"""Tokens that are read, at least one, and behind them those that count."""


@dataclasses.dataclass(frozen=True)
class CausalLosses:
    """What training and scoring compute of rows of the features "input", "target" (the same, one
    token on) and, where not all targets count, "counted": 1 for each that does.

    Attributes:
      model: maps tokens to logits of the next.
      options: of the training loss.
    """

    model: DecoderOnly
    options: LossOptions
    read: ClassVar[tuple[str, ...]] = ("input",)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters of the model."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row)["params"]

    def __call__(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of each target that counts given all before it, label-smoothed."""
        found = self._losses(params, batch, self.options, rng)
        return packed_loss(batch, self.read, found, _counted(batch))

    def log_probs(self, params: Params, batch: Batch, rng: jax.Array | None) -> jax.Array:
        """log P of each target that counts given all before it, float32 [B, T] in nats; elsewhere
        0."""
        unsmoothed = self._losses(
            params, batch, self.options.plain, rng
        ).losses  # `nll` has no gradient
        return jnp.where(_counted(batch), -unsmoothed, 0.0)

    def score(
        self, params: Params, pairs: Sequence[ContextTarget], context: int, batch_size: int
    ) -> list[PairScore]:
        """Of each pair, what the model makes of its second part behind its first.

        Args:
          params: of the model.
          pairs: any number of them.
          context: tokens that the model sees at once; of longer pairs the last are read, with a
            warning that names the pair's number.
          batch_size: at most so many pairs at once.

        Raises:
          UserError: a second part alone is longer than the context.
        """
        rows = {
            i: _features(*_within(context, *pair, f"line {i + 1}"))
            for i, pair in enumerate(pairs)
            if pair[1]
        }
        config = self.model.config
        size = functools.partial(row_bytes, config, config.vocab_size)
        scores = score_pairs(self.scores, params, [*rows.values()], batch_size, size)
        found = dict(zip(rows, scores, strict=True))
        return [found.get(i, PairScore(0.0, True)) for i in range(len(pairs))]

    def score_texts(
        self,
        params: Params,
        tokenizer: Tokenizer,
        pairs: Iterable[tuple[str, str]],
        context: int,
        batch_size: int,
    ) -> list[PairScore]:
        """As `score`, of pairs of texts that one tokenizer reads (`split_tokens`)."""
        tokens = [split_tokens(tokenizer, *pair) for pair in pairs]
        return self.score(params, tokens, context, batch_size)

    @functools.cached_property
    def scores(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        """(parameters, packed batch) -> `row_scores` of the targets that count; compiled."""

        def scores(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            return row_scores(self._losses(params, batch, self.options.plain), _counted(batch))

        return jax.jit(scores, compiler_options=platform.compiler_options())

    def _losses(
        self,
        params: Params,
        batch: Batch,
        options: LossOptions,
        rng: jax.Array | None = None,
    ) -> TokenLosses:
        """[B, T] of the targets."""
        inputs = row_inputs(batch, "input")
        predicted = apply_model(self.model, params, *inputs, rng=rng, method="unprojected")
        return tiled_token_losses(
            *(predicted, batch["target"], options.label_smoothing, options.z_loss),
            tiles=options.loss_tiles,
        )


def split_tokens(tokenizer: Tokenizer, source: str, target: str) -> ContextTarget:
    """The tokens of a source, the first token before them, and those of the target behind it.

    Both are encoded together, so that no word is cut that the tokenizer would not cut; white space
    at the end of the source belongs to the target, as tokens begin with it.
    """
    source_only = source.rstrip()
    together = tokenizer.encode(source + target)
    count = len(tokenizer.encode(source_only)) if target else len(together)
    return [tokenizer.specials.first, *together[:count]], together[count:]


def _within(context: int, read: Sequence[int], counted: Sequence[int], name: str) -> ContextTarget:
    """The last tokens that the model can see, those that count among them."""
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


def _features(read: Sequence[int], counted: Sequence[int]) -> Features:
    return loss_mask_features([*read, *counted], [False] * len(read) + [True] * len(counted))


def _counted(batch: Batch) -> jax.Array:
    """bool [B, T]."""
    return batch.get("counted", batch["target_segment_ids"]) > 0


# FOLDED tasks.pair_losses: The losses of a model that maps sources to targets, on packed pairs. B
# batch, T slots of a target, V vocabulary.


@dataclasses.dataclass(frozen=True)
class Seq2SeqLosses:
    """What training and scoring compute of pairs, packed as the features "source" and "target".

    Attributes:
      model: maps source and shifted target to logits.
      specials: of the targets' vocabulary.
      options: of the training loss.
      predicts: of each token of the targets' vocabulary that which is predicted in its place; None:
        itself.
    """

    model: Any
    specials: SpecialTokens
    options: LossOptions
    predicts: tuple[int, ...] | None = None
    read: ClassVar[tuple[str, ...]] = ("source", "target")

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters of the model."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, *[row] * 6)["params"]

    def __call__(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Label-smoothed cross-entropy of each target token given its past and the source; in
        training with R-Drop, where that is asked for."""
        if self.options.r_drop and rng is not None:
            found = self._consistent(params, batch, rng)
        else:
            found = self._losses(params, batch, self.options, rng)
        return packed_loss(batch, self.read, found, self._predicted(batch))

    @functools.cached_property
    def scores(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        """(parameters, packed batch) -> `row_scores` of the targets; compiled."""

        def scores(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            return row_scores(
                self._losses(params, batch, self.options.plain), self._predicted(batch)
            )

        return jax.jit(scores, compiler_options=platform.compiler_options())

    def _predicted(self, batch: Batch) -> jax.Array:
        """[B, T]: whether a target token is one that the model must predict; the head is forced."""
        head = len(self.specials.translation.head)
        return (batch["target_segment_ids"] > 0) & (batch["target_positions"] >= head)

    def _losses(
        self,
        params: Params,
        batch: Batch,
        options: LossOptions,
        rng: jax.Array | None = None,
    ) -> TokenLosses:
        """[B, T] of the target tokens."""
        predicted = apply_model(
            self.model, params, *self._inputs(batch), rng=rng, method="unprojected"
        )
        return tiled_token_losses(
            *(predicted, self._outputs(batch), options.label_smoothing, options.z_loss),
            tiles=options.loss_tiles,
        )

    def _consistent(self, params: Params, batch: Batch, rng: jax.Array) -> TokenLosses:
        """[B, T] of the target tokens by R-Drop (Liang et al. 2021, equation 4, halved): the mean
        cross-entropy of two passes that differ in dropout, and alpha / 4 of the divergence of
        their distributions, both directions added."""
        # Copies stand side by side, so that both are on the device of their row.
        twice = {name: jnp.repeat(rows, 2, axis=0) for name, rows in batch.items()}
        logits = apply_model(self.model, params, *self._inputs(twice), rng=rng)
        eps, z_loss = self.options.label_smoothing, self.options.z_loss
        found = token_losses(logits, self._outputs(twice), eps, z_loss)
        one, other = logits[::2], logits[1::2]
        apart = symmetric_kl(one, other)
        losses = (found.losses[::2] + found.losses[1::2]) / 2 + self.options.r_drop / 4 * apart
        return TokenLosses(losses, found.nll[::2], found.correct[::2])

    def _outputs(self, batch: Batch) -> jax.Array:
        """[B, T], the tokens that the model predicts."""
        target = batch["target"]
        return target if self.predicts is None else jnp.array(self.predicts, jnp.int32)[target]

    def _inputs(self, batch: Batch) -> tuple[jax.Array, ...]:
        """What the model reads."""
        target, *where = row_inputs(batch, "target")
        shifted = shift_right(target, where[0], self.specials.start)
        return (*row_inputs(batch, "source"), shifted, *where)
