"""Language modelling: text in, the likelihood of each token given those before it, and more text.

B batch, T tokens, V vocabulary.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from transformer_jax.data.examples import Corpus, Features
from transformer_jax.inference.config import SEARCH_FIELDS, DecodeConfig
from transformer_jax.inference.generation import TextGenerator, TokenGenerator
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.inference.pairs import PairScore
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.losses import CausalLosses
from transformer_jax.tasks.running_text import RunningText
from transformer_jax.tokenization import Tokenizers

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LanguageModeling:
    """The task of a decoder-only model on documents {"text": str}.

    A document has a first token before it and an end behind it. Where both are the same, as GPT-2's
    <|endoftext|> is, it stands once between two documents.

    Attributes:
      model: maps tokens to logits of the next.
      tokenizers: of the side "text".
      max_length: slots of a row, which is the context: the tokens that the model sees at once.
      text: how documents become rows.
      loss_options: of the training loss.
    """

    model: DecoderOnly
    tokenizers: Tokenizers
    max_length: int
    text: RunningText
    loss_options: LossOptions
    read: ClassVar[Sequence[str]] = CausalLosses.read
    best_by: ClassVar[str] = "-loss"
    predicts_by: ClassVar[Sequence[str]] = (
        *(field for field in SEARCH_FIELDS if field != "alpha"),
        *("search", "max_extra_length", "stop", "num_outputs", "batch_size"),
    )
    evaluates_by: ClassVar[Sequence[str]] = ()

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"input": self.max_length, "target": self.max_length}

    @classmethod
    def build(cls, parts: TaskParts) -> "LanguageModeling":
        """The task of a run.

        Raises:
          ValueError: the model is no decoder, or its positions do not reach as far as the rows.
        """
        length, vocab_size = parts.data.max_length, parts.vocab_sizes["text"]
        return cls(
            model=parts.make_model(DecoderOnly, reach=length, vocab_size=vocab_size),
            tokenizers=parts.tokenizers,
            max_length=length,
            text=RunningText(parts.data.packing, parts.caching),
            loss_options=parts.loss,
        )

    @functools.cached_property
    def losses(self) -> CausalLosses:
        """Of the model, on windows."""
        return CausalLosses(self.model, self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The documents as windows, or pieces, of tokens."""
        first = self.tokenizers.specials("text").first
        return self.text.windows(
            examples, self.tokenizers, first=first, length=self.max_length, training=training
        )

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """A window as it is: the features "input" and, one token on, "target"."""
        return example

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of each token given its past, label-smoothed in training."""
        return self.losses(params, batch, rng)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Loss and perplexity of a token; and what compares models with other tokenizers: bits a
        byte, and perplexity of a word (white space separates words, a line's end is one more).

        These two are left out where the tokenizer loses text, such as line ends or unknown words:
        what is not predicted would count as predicted for nothing.
        """
        texts = [example["text"] for example in examples]
        tokenizer = self.tokenizers.text("text")
        if any(tokenizer.decode(tokenizer.encode(text)) != text for text in texts):
            return compute_metrics(sums)
        words = sum(len(text.split()) + text.count("\n") for text in texts)
        size = sum(len(text.encode()) for text in texts)
        return compute_metrics(sums) | {
            "bits_per_byte": sums["nll"] / math.log(2) / max(size, 1),
            "word_perplexity": math.exp(min(sums["nll"] / max(words, 1), 700.0)),
        }

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Nothing besides the loss's metrics."""
        return {}, []

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """What follows each line, without the line: `decode.num_outputs` samples, likeliest first;
        a score is the log-probability in nats, of all tokens up to the end or to the one that
        completes a text of `decode.stop`.

        A prompt of more tokens than the context is continued from its last half a context, with a
        warning that names its line.

        Raises:
          UserError: a search is asked for that cannot draw token by token, such as beam search.
        """
        prompts = [self._prompt(line, number) for number, line in enumerate(lines, first_line)]
        numbers = range(first_line, first_line + len(lines))
        for outputs in self.continuation.texts(params, prompts, decode, numbers):
            yield [Prediction(*output) for output in outputs]

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """log P(target | source) of each pair in nats: of the target's own tokens, no end behind
        them. An empty source is the beginning of a text.

        Of a longer pair the last tokens that the context holds are read, with a warning; UserError
        where a target alone is longer.
        """
        tokenizer, pairs = self.tokenizers.text("text"), zip(sources, targets, strict=True)
        return self.losses.score_texts(params, tokenizer, pairs, self.max_length, batch_size)

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn."""
        return self.continuation.stream(params, self._prompt(line, 1), decode)

    def _prompt(self, line: str, number: int) -> list[int]:
        tokenizer = self.tokenizers.text("text")
        prompt = [tokenizer.specials.first, *tokenizer.encode(line)]
        if len(prompt) > self.max_length:
            logger.warning(
                "line %d has %d tokens, more than the model sees; it is continued from its last %d "
                "(data.max_length is %d)",
                number,
                len(prompt) - 1,
                len(self.drawing.kept(prompt)),
                self.max_length,
            )
        return prompt

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """A text as the model reads it, with the text that follows it, if that is given."""
        tokens = self.drawing.kept(self._prompt(source + (target or ""), 1))
        return text_inputs(self.model, self.tokenizers, source + (target or ""), None, tokens)

    @functools.cached_property
    def continuation(self) -> TextGenerator:
        """Draws what follows prompts."""
        return TextGenerator(self.drawing, self.tokenizers.text("text"))

    @functools.cached_property
    def drawing(self) -> TokenGenerator:
        """Draws tokens behind prompts."""
        return TokenGenerator(self.model, self.max_length, self.tokenizers.specials("text"))
