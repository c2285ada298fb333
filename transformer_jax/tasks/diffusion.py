# SPDX-License-Identifier: Apache-2.0
"""Masked diffusion: a bound of the likelihood as the loss, and samples by iterative unmasking.

B batch, T slots of a row, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from itertools import batched
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.examples import Features
from transformer_jax.decoding import Unmasking, truncate_at_eos
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.layers import looks_ahead
from transformer_jax.runtime import platform
from transformer_jax.runtime.progress import track
from transformer_jax.tasks.base import ScoringTask, TextTask
from transformer_jax.tasks.corruptions import OBJECTIVES, Diffusion, Masked, TextTokens, bound_masks
from transformer_jax.tasks.interface import (
    Batch,
    Frozen,
    LossSums,
    Params,
    Prediction,
    Supervised,
    TaskParts,
)
from transformer_jax.tasks.language_modeling import DocumentTask, DocumentWindows
from transformer_jax.tasks.line_warnings import LineWarnings
from transformer_jax.tasks.losses import (
    ContextTarget,
    packed_loss,
    row_inputs,
    split_tokens,
    text_frame,
)
from transformer_jax.tasks.masked_lm import fill_masks
from transformer_jax.tokenization import SpecialTokens


@dataclasses.dataclass(frozen=True, repr=False)
class MaskedDiffusion(DocumentTask, TextTask, ScoringTask):
    """Masked diffusion on documents {"text": str}, with a model that sees a whole text.

    A row is a first token, which is always visible, and a window of tokens. Its loss per token is
    an estimate of the bound of the negative log-likelihood.

    Attributes:
      model: maps tokens to logits of the tokens in the same places.
      corruption: hides tokens of a text.
      windows: cuts documents into texts.
    """

    corruption: Diffusion
    windows: DocumentWindows
    models: ClassVar[Sequence[type[Any]]] = (EncoderOnly, DecoderOnly)
    features: ClassVar[Sequence[str]] = ("text", "labels", "counts")
    predicts_by: ClassVar[Sequence[str]] = (
        *("search", "temperature", "seed", "num_outputs", "max_extra_length", "batch_size"),
    )

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run.

        Raises:
          ValueError: the parts do not fit together, the model does not see whole texts, or a block
            is longer than a text.
        """
        parts.require_mask()
        length = parts.data.max_length
        specials = parts.tokenizers.specials("text")
        objective: Any = OBJECTIVES.find(parts.task.objective or "")
        corruption: Diffusion = objective.of(parts.task, TextTokens(specials, np.zeros(0, bool)))
        size = getattr(corruption.settings, "size", 1)
        if size >= length:
            raise ValueError(
                f"task.block_diffusion.size is {size}; a row of {length} slots (data.max_length) "
                f"has room for blocks of at most {length - 1}"
            )
        if issubclass(parts.model_class, DecoderOnly) and not all(looks_ahead(parts.model)):
            raise ValueError(
                f"task.objective {parts.task.objective!r} predicts tokens from both sides, and a "
                "decoder sees those before alone; set model.attention_layer to 'bidirectional'"
            )
        windows = DocumentWindows.of(parts, specials.eos, length - 1)
        return super().build(parts, corruption=corruption, windows=windows)

    @property
    def first(self) -> int:
        """Token before each text."""
        return text_frame(self.model, self.tokenizers).head[0]

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Returns a text with hidden tokens, drawn anew at each visit, as `row`."""
        tokens = example["target"]
        return self.row(tokens, self.corruption(tokens, rng))

    def row(self, tokens: np.ndarray, masked: Masked) -> Features:
        """Features of a text: "text", with the first token; "labels", 1 + each hidden token, and 0
        elsewhere; "counts" (`Masked`)."""
        labels = np.where(masked.is_hidden, 1 + tokens[: len(masked.inputs)], 0)
        return {
            "text": np.append(self.first, masked.inputs).astype(np.int32),
            "labels": np.append(0, labels).astype(np.int32),
            "counts": np.append(0, masked.counts).astype(np.int32),
        }

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs and the hidden tokens of a packed batch."""
        labels = jnp.maximum(batch["labels"] - 1, 0)
        return Supervised(row_inputs(batch, "text"), labels, batch["labels"] > 0)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the weighted losses of the hidden tokens, over the tokens that they stand for."""
        token_losses, _ = self.token_losses(params, batch, rng, frozen)
        total, _, sums = packed_loss(batch, self.read, token_losses, loss_weights(batch))
        num_tokens = batch["counts"].sum().astype(jnp.float32)
        return total, num_tokens, sums | {"tokens": num_tokens}

    def pair_tokens(self, number: int, source: str, target: str) -> ContextTarget:
        """Tokens of both, without a first token. Raises UserError if they are longer than a row."""
        (_, *context), tokens = split_tokens(self.tokenizers.text("text"), source, target)
        count = len(context) + len(tokens)
        if count >= self.max_length:
            raise UserError(
                f"score: line {number} has {count} tokens, more than the {self.max_length - 1} of "
                "a row (data.max_length); make it shorter"
            )
        return context, tokens

    def scored_rows(
        self, pair: ContextTarget, warnings: LineWarnings
    ) -> Iterator[tuple[float, Features]]:
        """Yields masked texts, whose weighted scores add up to a lower bound of log P of the
        target, exact for targets with few masks, otherwise estimated from `task.diffusion.draws` of
        them; a target is greedy if each hidden token is the likeliest in all of them."""
        source, target = pair
        tokens = np.array([*source, *target], np.int32)
        rng = np.random.default_rng(tokens.tolist())  # the same masks wherever the pair is
        for block in self.corruption.blocks(len(tokens)):
            start = max(block.start, len(source))
            length = max(0, block.stop - start)
            for hidden, weight in bound_masks(length, self.corruption.settings.draws, rng):
                is_hidden = np.zeros(block.stop, bool)
                is_hidden[start:] = hidden
                inputs = np.where(is_hidden, self.corruption.text.mask, tokens[: block.stop])
                masked = Masked(inputs, is_hidden, np.zeros(block.stop, np.int32))
                yield weight, self.row(tokens, masked)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields `decode.num_outputs` outputs for each line, most likely first: the line with its
        [MASK]s filled or, if it has none, its continuation of at most `decode.max_extra_length`
        tokens. A score adds up the log-probabilities of tokens when they were chosen.

        Raises:
          UserError: the search writes from left to right, or a line leaves no room.
        """
        unmasking = self.unmasking(decode)
        tokenizer = self.tokenizers.text("text")
        fillings: list[_Filling] = []
        for number, line in enumerate(lines, first_line):
            line_tokens = tokenizer.encode(line)
            has_masks = self.corruption.text.mask in line_tokens
            room = self.max_length - 1 - (not has_masks)
            if len(line_tokens) > room:
                raise UserError(
                    f"line {number} has {len(line_tokens)} tokens, and there is room for {room} "
                    "(data.max_length); make it shorter"
                )
            limit = len(line_tokens) + (0 if has_masks else decode.max_extra_length)
            limit = min(limit, self.max_length - 1)
            for sample in range(decode.num_outputs):
                fillings.append(
                    _Filling((number, sample), line_tokens, has_masks, limit, [*line_tokens])
                )
        for part in track(batched(fillings, decode.batch_size), len(fillings), "example"):
            self._fill(params, part, decode, unmasking)
        samples = batched(fillings, decode.num_outputs)
        for line, of_line in zip(lines, samples, strict=True):
            outputs = [Prediction(self._text(line, filling), filling.score) for filling in of_line]
            yield sorted(outputs, key=lambda output: -output.score)

    def _text(self, line: str, filling: "_Filling") -> str:
        """The line with its masks filled, or its continuation."""
        tokenizer = self.tokenizers.text("text")
        if not filling.has_masks:
            return tokenizer.decode(filling.tokens[len(filling.line_tokens) :])
        places = np.array(filling.line_tokens) == self.corruption.text.mask
        return fill_masks(tokenizer, line, np.array(filling.tokens)[places].tolist())

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a text as the model reads it; all its positions are predicted."""
        text = self.tokenizers.text("text").encode(source)
        tokens = [self.first, *text][: self.max_length]
        return text_inputs(self.model, self.tokenizers, source, target, tokens)

    def unmasking(self, decode: DecodeConfig) -> Unmasking:
        """The search of `decode`, by default `unmask`.

        Raises:
          UserError: it is another one, or several outputs would be the same.
        """
        unmasking = make_unmasking(decode, self.specials)
        is_random = decode.temperature is not None or unmasking.order == "random"
        if decode.num_outputs > 1 and not is_random:
            raise UserError(
                f"decode: num_outputs is {decode.num_outputs}, and they are all the same without "
                "chance; set temperature, as to 1.0"
            )
        return unmasking

    def _fill(
        self,
        params: Params,
        fillings: Sequence["_Filling"],
        decode: DecodeConfig,
        unmasking: Unmasking,
    ) -> None:
        """Fills texts in place. One without masks is continued, by one block after the other."""
        mask = self.corruption.text.mask
        eos = self.specials.eos
        program = functools.partial(self._program, unmasking=unmasking, seed=decode.seed)
        batch = PaddedBatch(([self.first], (0, 0, 0)), self._arrays)
        for step, block in enumerate(self.corruption.blocks(self.max_length - 1)):
            rows = []
            for filling in fillings:
                if not filling.has_masks and not filling.ended:
                    stop = min(block.stop, filling.limit)
                    filling.tokens += [mask] * (stop - len(filling.tokens))
                rows.append(([self.first, *filling.tokens], (*filling.keys, step)))
            if not any(mask in tokens for tokens, _ in rows):
                continue
            filled = batch.run(program, params, rows, decode.batch_size)
            for filling, row, log_probs in zip(fillings, *filled, strict=True):
                start = len(filling.line_tokens)
                written = row[1 : 1 + len(filling.tokens)].tolist()
                filling.ended |= eos in written[start:]
                filling.tokens = [*written[:start], *truncate_at_eos(written[start:], eos)]
                # Up to the end token; tokens of earlier steps have 0 here.
                filling.score += float(log_probs[: 1 + len(filling.tokens)].sum())

    @staticmethod
    def _arrays(rows: Sequence[tuple[list[int], tuple[int, ...]]]) -> dict[str, np.ndarray]:
        batch = padded_batch([{"text": tokens} for tokens, _ in rows])
        return {**batch, "keys": np.array([keys for _, keys in rows], np.int32)}

    @platform.compiled_method(static_argnames=("unmasking", "seed"))
    def _program(
        self, params: Params, batch: Batch, unmasking: Unmasking, seed: int
    ) -> tuple[jax.Array, jax.Array]:
        """Filled texts, and log-probabilities, [B, T] each. "keys" of the batch name its rows."""
        text, *places = row_inputs(batch, "text")

        def logits_of(tokens: jax.Array) -> jax.Array:
            return apply_model(self.model, params, tokens, *places)

        return unmasking(logits_of, text, self.corruption.text.mask, row_keys(batch["keys"], seed))


@dataclasses.dataclass
class _Filling:
    """An output of a line: its tokens with masks filled or, without masks, continued.

    Attributes:
      keys: numbers of the line and of the sample.
      line_tokens: tokens of the line.
      limit: largest number of tokens.
    """

    keys: tuple[int, int]
    line_tokens: list[int]
    has_masks: bool
    limit: int
    tokens: list[int]
    score: float = 0.0
    ended: bool = False


def make_unmasking(decode: DecodeConfig, specials: SpecialTokens) -> Unmasking:
    """The search of `decode`, by default `unmask`. Raises UserError if it is another one."""
    if decode.search not in (None, "unmask"):
        raise UserError(
            f"decode.search {decode.search!r} writes from left to right, and this run fills "
            "masks; leave it out, or set it to 'unmask'"
        )
    unmasking: Any = dataclasses.replace(decode, search="unmask").make_search(specials)
    assert isinstance(unmasking, Unmasking)
    return unmasking


def row_keys(keys: jax.Array, seed: int) -> jax.Array:
    """A random key for each row, from the numbers [B, N] that name it."""
    fold_in = jax.vmap(jax.random.fold_in)
    of_rows = jnp.broadcast_to(jax.random.key(seed), len(keys))
    for column in keys.T:
        of_rows = fold_in(of_rows, column)
    return of_rows


def loss_weights(batch: Batch) -> jax.Array:
    """Weights of the losses of hidden tokens (`Masked`), float32 [B, T]; 0 elsewhere."""

    def of_segment(is_one: jax.Array) -> jax.Array:
        """Number of tokens for which it is true in each token's text, [B, T]."""
        ids = batch["text_segment_ids"]
        add = jax.vmap(lambda x, i: jnp.zeros(1 + len(x)).at[i].add(x)[i])
        return add(is_one.astype(jnp.float32), ids)

    is_hidden = batch["labels"] > 0
    share = of_segment(batch["counts"] > 0) / jnp.maximum(of_segment(is_hidden), 1)
    return jnp.where(is_hidden, batch["counts"] * share, 0)
