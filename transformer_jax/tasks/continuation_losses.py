"""The losses of a decoder-only model on texts of which all tokens count, or some.

B batch, T slots, V vocabulary.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.data.batches.marked_texts import marked
from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError
from transformer_jax.inference.pairs import PairScore, row_bytes, score_pairs
from transformer_jax.losses import TokenLosses
from transformer_jax.models.apply import apply
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, LossOptions, LossSums, Params
from transformer_jax.tasks.packed import packed_loss, row_inputs, row_scores
from transformer_jax.tiled_losses import projected_losses
from transformer_jax.tokenization import Tokenizer

logger = logging.getLogger(__name__)

Split = tuple[Sequence[int], Sequence[int]]
"""Tokens that are read, at least one, and behind them those that count."""


@dataclasses.dataclass(frozen=True)
class ContinuationLosses:
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
        self, params: Params, pairs: Sequence[Split], context: int, batch_size: int
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
        predicted = apply(self.model, params, *inputs, rng=rng, method="unprojected")
        return projected_losses(
            *(predicted, batch["target"], options.label_smoothing, options.z_loss),
            tiles=options.loss_tiles,
        )


def split_tokens(tokenizer: Tokenizer, source: str, target: str) -> Split:
    """The tokens of a source, the first token before them, and those of the target behind it.

    Both are encoded together, so that no word is cut that the tokenizer would not cut; white space
    at the end of the source belongs to the target, as tokens begin with it.
    """
    source_only = source.rstrip()
    together = tokenizer.encode(source + target)
    count = len(tokenizer.encode(source_only)) if target else len(together)
    return [tokenizer.specials.first, *together[:count]], together[count:]


def _within(context: int, read: Sequence[int], counted: Sequence[int], name: str) -> Split:
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
    return marked([*read, *counted], [False] * len(read) + [True] * len(counted))


def _counted(batch: Batch) -> jax.Array:
    """bool [B, T]."""
    return batch.get("counted", batch["target_segment_ids"]) > 0
