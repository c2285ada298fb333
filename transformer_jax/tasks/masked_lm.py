# SPDX-License-Identifier: Apache-2.0
"""Masked language modeling (Devlin et al. 2019).

B batch, T tokens, P predicted positions of a row, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.order import PlacedRng
from transformer_jax.data.batches.packing import pad_rows, padded_batch
from transformer_jax.data.examples import Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch, label_rows
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, as_row, text_inputs
from transformer_jax.models import apply_model
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.runtime import platform
from transformer_jax.tasks.base import TextTask
from transformer_jax.tasks.config import TaskConfig
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
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings, read_lines
from transformer_jax.tasks.losses import row_inputs
from transformer_jax.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, repr=False)
class MaskedLanguageModeling(DocumentTask, TextTask):
    """Masked language modeling with an encoder-only model on documents {"text": str}.

    A row is [CLS] window [SEP], in the vocabulary's own special tokens.

    Attributes:
      model: maps tokens and positions to logits of the tokens at these positions.
      windows: cuts documents into rows.
      config: the section `task`. Of the tokens that are predicted, the share `mask_rate`, 80% are
        replaced by [MASK], 10% by a random token, and 10% are kept; the choice differs from epoch
        to epoch.
    """

    windows: DocumentWindows
    config: TaskConfig
    models: ClassVar[Sequence[type[Any]]] = (EncoderOnly,)
    features: ClassVar[Sequence[str]] = ("text", "labels")
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")

    @property
    def num_predicted(self) -> int:
        """P, the largest number of positions of a row that the loss counts.

        Short texts exceed it together, since at least one token of each is chosen: see
        `restore_beyond`.
        """
        highest_rate = max(self.config.mask_rate, self.config.final_mask_rate or 0.0)
        return min(math.ceil(1.25 * highest_rate * self.max_length), self.max_length)

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run.

        Raises:
          ValueError: the parts do not fit together, a row has no room for a token, or the tokenizer
            has no [MASK].
        """
        length = parts.data.max_length
        specials = parts.tokenizers.specials("text")
        if length <= specials.encoder.size():
            raise ValueError(f"data.max_length is {length}; a row has [CLS], a token and [SEP]")
        parts.require_mask()
        loss = dataclasses.replace(parts.loss, label_smoothing=0.0)
        return super().build(
            dataclasses.replace(parts, loss=loss),
            windows=DocumentWindows.of(parts, specials.eos, length - specials.encoder.size()),
            config=parts.task,
        )

    def init(self, rng: jax.Array) -> Params:
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row, row - 1)["params"]

    @property
    def mask(self) -> int:
        assert self.specials.mask is not None  # checked by `build`
        return self.specials.mask

    @functools.cached_property
    def is_text(self) -> np.ndarray:
        """Mask of the tokens that are not special, bool [V]. Only these are predicted or drawn."""
        return ~np.isin(np.arange(self.model.config.vocab_size), [*self.specials.ids])

    @functools.cached_property
    def _drawn(self) -> np.ndarray:
        """The tokens that replace others, in ascending order."""
        return np.flatnonzero(self.is_text)

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Returns a window as "text", partly masked, and "labels": 1 + the token at each position
        to predict, 0 elsewhere."""
        return self.masked(example, rng, self.config.mask_rate)

    def masked(self, example: Features, rng: np.random.Generator, rate: float) -> Features:
        """Masks a window as `preprocess`, a share `rate` of its tokens."""
        frame = self.specials.encoder
        parts = (frame.head, example["input"], frame.tail)
        text = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        chosen = self._choose(text, rng, rate)
        labels = np.zeros_like(text)
        labels[chosen] = 1 + text[chosen]
        fate = rng.random(len(chosen))  # 80% masked, 10% random, 10% unchanged
        text[chosen[fate < 0.8]] = self.mask
        random = chosen[fate >= 0.9]
        text[random] = self._drawn[rng.integers(0, len(self._drawn), len(random))]
        return {"text": text, "labels": labels}

    def _choose(self, text: np.ndarray, rng: np.random.Generator, rate: float) -> np.ndarray:
        """Positions to predict, at least one if there is a token that is not special."""
        places = np.flatnonzero(self.is_text[text])
        count = max(1, round(rate * len(places)))
        if not self.config.whole_words:
            return rng.permutation(places)[:count]
        starts = np.array(self.tokenizers.text("text").starts_word(text))[places]
        words = np.split(places, np.flatnonzero(starts)[1:]) if len(places) else []
        chosen: list[int] = []
        for i in rng.permutation(len(words)):
            if len(chosen) + len(words[i]) <= count or not chosen:
                chosen.extend(words[i])
        return np.array(chosen, np.int64)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the training loss of the tokens to predict, at most `num_predicted` of a row.

        The sum "restored" is the number of chosen tokens beyond that.
        """
        batch, restored = restore_beyond(batch, self.num_predicted)
        loss, weight, sums = super().loss(params, batch, rng, frozen)
        return loss, weight, {**sums, "restored": restored}

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs, and the first `num_predicted` chosen tokens of each row."""
        chosen = (batch["labels"] > 0).astype(jnp.int32)
        is_chosen, places = jax.lax.top_k(chosen, self.num_predicted)
        labels = jnp.take_along_axis(jnp.maximum(batch["labels"] - 1, 0), places, axis=1)
        return Supervised((*row_inputs(batch, "text"), places), labels, is_chosen > 0)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields each line with its [MASK]s filled: output i has the i-th likeliest token of each.
        A score is the probability of these tokens, taken as independent.

        Of a line longer than a row the first tokens are read, and a line without a [MASK] among
        them is returned unchanged, each with a warning that names it, counted from `first_line`.

        Raises:
          UserError: more outputs are requested than there are tokens to choose from.
        """
        num_pieces = int(self.is_text.sum())
        if decode.num_outputs > num_pieces:
            raise UserError(
                f"decode: num_outputs is {decode.num_outputs}; the vocabulary has {num_pieces} "
                "pieces to fill in"
            )
        tokens = read_lines(lines, first_line, self._row)
        masked = [i for i, row in enumerate(tokens) if self.mask in row]

        batch = PaddedBatch([0], functools.partial(blank_arrays, mask=self.mask))
        program = functools.partial(self._likeliest, count=decode.num_outputs)
        likeliest = batch.run_all(program, params, [tokens[i] for i in masked], decode.batch_size)
        results: dict[int, list[Prediction]] = {}
        for i, (row, (ids, probabilities)) in zip(masked, likeliest, strict=True):
            blanks = slice(row.count(self.mask))
            results[i] = self._filled(lines[i], ids[blanks], probabilities[blanks])
        none = f"no {mask_text(self.tokenizers.text('text'))} to fill;"
        with collect_warnings(len(lines)) as warnings:
            for i in sorted(set(range(len(lines))) - set(masked)):
                line_warnings = warnings.about(i + first_line)
                message = f"{line_warnings.name} has {none} it is left unchanged"
                line_warnings.add(message, f"have {none} they are left unchanged")
        for i, line in enumerate(lines):
            yield results.get(i, [Prediction(line, 1.0)])

    def embed(
        self, params: Params, lines: Sequence[str], batch_size: int, first_line: int = 1
    ) -> np.ndarray:
        """Returns the vector of each line (Reimers and Gurevych 2019), float32 [N, D]. Lines that
        are longer than a row are cut, with a warning that names them, counted from `first_line`.

        Raises:
          UserError: the run has no pooling.
        """
        if self.config.pooling is None:
            raise UserError(
                "embed: task.pooling is not set, which says how vectors of tokens become one; "
                "set it: --pooling=mean, or cls"
            )
        rows = read_lines(lines, first_line, self._row)
        vectors = label_rows(self._vectors, params, rows, batch_size)
        return np.array(vectors, np.float32).reshape(len(rows), self.model.config.d_model)

    @platform.compiled_method()
    def _vectors(self, params: Params, batch: Batch) -> jax.Array:
        """Vectors of a batch with one text per row, [B, D]."""
        inputs = row_inputs(batch, "text")
        x = apply_model(self.model, params, *inputs, method="features").astype(jnp.float32)
        is_token = (batch["text_segment_ids"] > 0)[:, :, None]
        if self.config.pooling == "cls":
            pooled = x[:, 0]
        elif self.config.pooling == "max":
            pooled = jnp.where(is_token, x, -jnp.inf).max(axis=1)
        else:
            total = jnp.where(is_token, x, 0).sum(axis=1)
            pooled = total / jnp.maximum(is_token.sum(axis=1), 1)
        if self.config.normalize:
            pooled /= jnp.maximum(jnp.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return pooled

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a text as the model reads it; all its positions are predicted."""
        with collect_warnings() as warnings:
            tokens = self._row(source, warnings)
        everywhere = as_row(tokens)[1]
        return text_inputs(self.model, self.tokenizers, source, target, tokens, everywhere)

    def _row(self, line: str, warnings: LineWarnings) -> list[int]:
        """Tokens of a line, cut to a row, with special tokens."""
        frame = self.specials.encoder
        room = self.max_length - frame.size()
        ids = self.tokenizers.text("text").encode(line)
        limit = f"data.max_length is {self.max_length}"
        return frame.around(warnings.cut(ids, room, limit))

    @platform.compiled_method(static_argnames="count")
    def _likeliest(self, params: Params, batch: Batch, count: int) -> tuple[jax.Array, jax.Array]:
        """Likeliest tokens of each [MASK], and their probabilities, [B, P, count] each."""
        logits = apply_model(self.model, params, *row_inputs(batch, "text"), batch["places"])
        logits = jnp.where(self.is_text, logits, -jnp.inf)
        probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), count)
        return ids, probabilities

    def _filled(self, line: str, ids: np.ndarray, probabilities: np.ndarray) -> list[Prediction]:
        """Outputs of a line, given the ids and probabilities [P, n] of its blanks."""
        tokenizer = self.tokenizers.text("text")
        scores = probabilities.prod(axis=0).tolist()
        return [
            Prediction(fill_masks(tokenizer, line, column), score)
            for column, score in zip(ids.T, scores, strict=True)
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class ScheduledMasks:
    """Masks training texts with a rate that follows a schedule.

    A text has the rate of the step in which its place in the order is due, so that resumed runs and
    workers draw the same masks.

    Attributes:
      task: masks a text.
      rates: share of masked tokens in each step, float32 [steps]; the last holds afterwards.
      texts_per_step: mean number of texts in a batch.
    """

    task: MaskedLanguageModeling
    rates: np.ndarray
    texts_per_step: float

    def __call__(self, example: Features, rng: np.random.Generator) -> Features:
        assert isinstance(rng, PlacedRng)
        step = min(int(rng.place / self.texts_per_step), len(self.rates) - 1)
        return self.task.masked(example, rng, float(self.rates[step]))


def restore_beyond(batch: Batch, count: int) -> tuple[Batch, jax.Array]:
    """Puts back the tokens of a row's chosen positions beyond `count`, so that none is masked and
    never predicted. The positions that stay chosen are spread evenly over all chosen ones.

    Returns:
      the batch, and the number of tokens put back.
    """
    chosen = batch["labels"] > 0
    # Of n chosen positions the one of rank i stays where floor(i * count / n) rises: `count` of
    # them, evenly spread. If n is at most `count`, all stay.
    total = jnp.maximum(chosen.sum(axis=1, keepdims=True), count)
    rank = jnp.cumsum(chosen, axis=1) - 1
    stays = (rank + 1) * count // total > rank * count // total
    beyond = chosen & ~stays
    text = jnp.where(beyond, batch["labels"] - 1, batch["text"])
    labels = jnp.where(beyond, 0, batch["labels"])
    return {**batch, "text": text, "labels": labels}, beyond.sum()


def blank_arrays(rows: Sequence[Sequence[int]], mask: int) -> dict[str, np.ndarray]:
    """The rows as feature "text", and "places" [B, P], the positions of the token `mask`."""
    batch = padded_batch([{"text": row} for row in rows])
    places = [np.flatnonzero(np.array(row) == mask).tolist() for row in rows]
    width = 1 << (max(map(len, places)) - 1).bit_length()  # a power of 2: few shapes to compile
    return {**batch, "places": pad_rows(places, width)}


def mask_text(tokenizer: Tokenizer) -> str:
    """How a line of a user writes a mask; empty if there is no mask token."""
    mask = tokenizer.specials.mask
    return "" if mask is None else tokenizer.pieces([mask])[0]


def fill_masks(tokenizer: Tokenizer, line: str, tokens: Iterable[int]) -> str:
    """The line with its masks replaced by the texts of tokens."""
    # WordPiece writes "##" before a piece within a word.
    words = [tokenizer.decode([token]).removeprefix("##") for token in tokens]
    return fill_blanks(line, mask_text(tokenizer), words)


def fill_blanks(line: str, blank: str, words: Sequence[str]) -> str:
    """The line with its first blanks, each written `blank`, replaced by the words.

    Some vocabularies write words with a space before them. It is left out after another space, and
    at the start.
    """
    text, *others = line.split(blank)
    for word, rest in zip(words, others, strict=False):
        is_apart = not text or text[-1].isspace()
        text += (word.lstrip(" ") if is_apart else word) + rest
    return blank.join([text, *others[len(words) :]])
