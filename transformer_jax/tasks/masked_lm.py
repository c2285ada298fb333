"""Masked language modelling: text in, the tokens that were hidden in it out (Devlin et al. 2019).

B batch, T tokens, P predicted places of a row, V vocabulary.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import pad_rows, padded_batch
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, as_row, text_inputs
from transformer_jax.losses import tiled_token_losses
from transformer_jax.metrics import compute_metrics
from transformer_jax.models import apply_model
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, LossSums, Params, Prediction, TaskParts
from transformer_jax.tasks.losses import packed_loss, row_inputs
from transformer_jax.tasks.running_text import RunningText
from transformer_jax.tokenization import SpecialTokens, Tokenizers

# FOLDED inference.blanks: Blanks in text, as masked language models fill them. B batch, P blanks
# of a row.


def blank_arrays(rows: Sequence[Sequence[int]], mask: int) -> dict[str, np.ndarray]:
    """The rows as the feature "text", and "places" [B, P] where the token `mask` stands in them."""
    batch = padded_batch([{"text": row} for row in rows])
    places = [np.flatnonzero(np.array(row) == mask).tolist() for row in rows]
    width = 1 << (max(map(len, places)) - 1).bit_length()
    return {**batch, "places": pad_rows(places, width)}


def fillings(
    line: str, blank: str, decode: Callable[[Sequence[int]], str], ids: np.ndarray
) -> list[str]:
    """The line with its blanks filled in n ways, by the ids [P, n] of their places."""
    words = [[decode([token]).removeprefix("##") for token in chosen] for chosen in ids.T]
    return [fill_blanks(line, blank, of_places) for of_places in words]


def fill_blanks(line: str, blank: str, words: Sequence[str]) -> str:
    """The line with its first blanks, each written `blank`, replaced by the words.

    Some vocabularies write words with a space before them: it is left out where one stands already,
    and at the start.
    """
    text, *others = line.split(blank)
    for word, behind in zip(words, others, strict=False):
        is_apart = not text or text[-1].isspace()
        text += (word.lstrip(" ") if is_apart else word) + behind
    return blank.join([text, *others[len(words) :]])


logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModeling:
    """The task of an encoder-only model on documents {"text": str}.

    A row is [CLS] a window of text [SEP], whatever the vocabulary has for these.

    Attributes:
      model: maps tokens and places to logits of the tokens that belong there.
      tokenizers: of the side "text", one with a mask.
      max_length: slots of a row.
      text: how documents become rows.
      mask_rate: share of a window's tokens that are predicted. Of these 80% are hidden behind
        [MASK], 10% replaced by a random token, 10% left; drawn anew in each epoch.
      whole_words: all pieces of a word are predicted, or none.
      loss_tiles: parts of the vocabulary that the loss reads one after another.
      z_loss: as of `losses.cross_entropy`.
    """

    model: EncoderOnly
    tokenizers: Tokenizers
    max_length: int
    text: RunningText
    mask_rate: float
    whole_words: bool
    loss_tiles: int | None
    z_loss: float
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: ClassVar[str] = "-loss"
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")
    evaluates_by: ClassVar[Sequence[str]] = ()

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"text": self.max_length, "labels": self.max_length}

    @property
    def num_predicted(self) -> int:
        """P: the most places of a row that the loss counts."""
        return min(math.ceil(1.25 * self.mask_rate * self.max_length), self.max_length)

    @classmethod
    def build(cls, parts: TaskParts) -> "MaskedLanguageModeling":
        """The task of a run.

        Raises:
          ValueError: the model is no encoder, its positions do not reach as far as the rows, these
            have no room for a token, or the tokenizer has no [MASK].
        """
        length, vocab_size = parts.data.max_length, parts.vocab_sizes["text"]
        specials = parts.tokenizers.specials("text")
        if length <= specials.encoder.size():
            raise ValueError(f"data.max_length is {length}; a row has [CLS], a token and [SEP]")
        model = parts.make_model(EncoderOnly, reach=length, vocab_size=vocab_size)
        if parts.tokenizers.sides and specials.mask is None:
            raise ValueError(
                "task masked_lm asks for a tokenizer with [MASK]: kind wordpiece, or file"
            )
        return cls(
            model=model,
            tokenizers=parts.tokenizers,
            max_length=length,
            text=RunningText(parts.data.packing, parts.caching),
            mask_rate=parts.task.mask_rate,
            whole_words=parts.task.whole_words,
            loss_tiles=parts.loss.loss_tiles,
            z_loss=parts.loss.z_loss,
        )

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row, row - 1)["params"]

    @property
    def specials(self) -> SpecialTokens:
        """Of the text."""
        return self.tokenizers.specials("text")

    @property
    def mask(self) -> int:
        """The token that hides others."""
        assert self.specials.mask is not None  # as `build` made sure
        return self.specials.mask

    @property
    def mask_text(self) -> str:
        """How a text writes the mask."""
        return self.tokenizers.text("text").pieces([self.mask])[0]

    @functools.cached_property
    def is_text(self) -> np.ndarray:
        """bool [V]: whether a token stands for text; these are predicted, and drawn."""
        return ~np.isin(np.arange(self.model.config.vocab_size), [*self.specials.ids])

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The documents as windows, or pieces, of the tokens that a row has room for."""
        length = self.max_length - self.specials.encoder.size()
        first = self.specials.eos
        return self.text.windows(
            examples, self.tokenizers, first=first, length=length, training=training
        )

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """A window as "text", some of it hidden, and "labels": 1 + the token to predict, 0 where
        there is none."""
        text = np.array(self.specials.encoder.around(example["input"].tolist()), np.int32)
        chosen = self._choose(text, rng)
        labels = np.zeros_like(text)
        labels[chosen] = 1 + text[chosen]
        fate = rng.random(len(chosen))
        text[chosen[fate < 0.8]] = self.mask
        random = chosen[fate >= 0.9]
        drawn = np.flatnonzero(self.is_text)
        text[random] = drawn[rng.integers(0, len(drawn), len(random))]
        return {"text": text, "labels": labels}

    def _choose(self, text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The places to predict, at least one where there is a token that is not special."""
        places = np.flatnonzero(self.is_text[text])
        if not self.whole_words:
            count = max(1, round(self.mask_rate * len(places)))
            return rng.permutation(places)[:count]
        starts = self.tokenizers.text("text").starts_word(text[places])
        words = np.split(places, np.flatnonzero(starts)[1:]) if len(places) else []
        count, chosen = max(1, round(self.mask_rate * len(places))), list[int]()
        for i in rng.permutation(len(words)):
            if len(chosen) + len(words[i]) <= count or not chosen:
                chosen.extend(words[i])
        return np.array(chosen, np.int64)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of the tokens chosen to be predicted, `num_predicted` of a row at most."""
        chosen = (batch["labels"] > 0).astype(jnp.int32)
        is_chosen, places = jax.lax.top_k(chosen, self.num_predicted)
        labels = jnp.take_along_axis(jnp.maximum(batch["labels"] - 1, 0), places, axis=1)
        inputs = (*row_inputs(batch, "text"), places)
        predicted = apply_model(self.model, params, *inputs, rng=rng, method="unprojected")
        found = tiled_token_losses(predicted, labels, 0.0, self.z_loss, self.loss_tiles)
        return packed_loss(batch, self.read, found, is_chosen > 0)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Loss, perplexity and accuracy of the predicted tokens."""
        return compute_metrics(sums)

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Nothing besides the loss's metrics."""
        return {}, []

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Each line with its [MASK]s filled: output i with the i-th likeliest token of each place;
        a score is the probability of these, places taken as independent.

        A line without [MASK], or with none among its first `max_length` tokens, is left as it is,
        with a warning that names it.

        Raises:
          UserError: more outputs are asked for than there are tokens to choose from.
        """
        if (count := decode.num_outputs) > (known := int(self.is_text.sum())):
            told = f"num_outputs is {count}; the vocabulary has {known} pieces to fill in"
            raise UserError(f"decode: {told}")
        tokens = [self._row(line) for line in lines]
        masked = [i for i, row in enumerate(tokens) if self.mask in row]

        batch = PaddedBatch([0], functools.partial(blank_arrays, mask=self.mask))
        program = functools.partial(self._likeliest, count=decode.num_outputs)
        results: dict[int, list[Prediction]] = {}
        for chosen in batched(masked, decode.batch_size):
            found = batch.run(program, params, [tokens[i] for i in chosen], decode.batch_size)
            for i, ids, probabilities in zip(chosen, *found, strict=True):
                blanks = slice(tokens[i].count(self.mask))
                results[i] = self._filled(lines[i], ids[blanks], probabilities[blanks])
        for i, line in enumerate(lines):
            if i not in results:
                told = f"line %d has no {self.mask_text} to fill; it is left as it is"
                logger.warning(told, i + first_line)
            yield results.get(i, [Prediction(line, 1.0)])

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """A text as the model reads it; all its places are predicted."""
        tokens = self._row(source)
        everywhere = as_row(tokens)[1]
        return text_inputs(self.model, self.tokenizers, source, target, tokens, everywhere)

    def _row(self, line: str) -> list[int]:
        frame = self.specials.encoder
        room = self.max_length - frame.size()
        return frame.around(self.tokenizers.text("text").encode(line)[:room])

    @functools.cached_property
    def _likeliest(self) -> Callable[..., tuple[jax.Array, jax.Array]]:
        def likeliest(params: Params, batch: Batch, count: int) -> tuple[jax.Array, jax.Array]:
            """The `count` likeliest tokens of each [MASK], and their probabilities: [B, P, n]."""
            logits = apply_model(self.model, params, *row_inputs(batch, "text"), batch["places"])
            logits = jnp.where(self.is_text, logits, -jnp.inf)
            probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), count)
            return ids, probabilities

        return jax.jit(
            likeliest, static_argnames="count", compiler_options=platform.compiler_options()
        )

    def _filled(self, line: str, ids: np.ndarray, probabilities: np.ndarray) -> list[Prediction]:
        """The outputs for a line: ids and probabilities [P, n] of its places."""
        texts = fillings(line, self.mask_text, self.tokenizers.text("text").decode, ids)
        return list(map(Prediction, texts, probabilities.prod(axis=0).tolist()))
