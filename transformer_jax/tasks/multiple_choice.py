"""Multiple choice: a context and several continuations in, the likeliest of them out.

B batch, T tokens.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from transformer_jax.data.batches.loss_masks import LOSS_MASK_FEATURES, LossMaskedTexts
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.data.files.json_lines import (
    CHOICES_FORMAT,
    choice_continuation,
    parse_question,
)
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.pairs import PairScore
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.scoring.labels import multiple_choice
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.losses import CausalLosses, split_tokens
from transformer_jax.tokenization import Tokenizers

Question = tuple[str, Sequence[str]]
"""A context, and the choices of what follows it."""


@dataclasses.dataclass(frozen=True)
class MultipleChoice:
    """The task of a decoder-only model on {"context", "choices", "answer"}: its likeliest choice
    answers. Training counts the tokens of the right one.

    Attributes:
      model: maps tokens to logits of the next.
      tokenizers: of the side "text".
      max_length: slots of a row, which is the context: the tokens that the model sees at once.
      loss_options: of the training loss.
    """

    model: DecoderOnly
    tokenizers: Tokenizers
    max_length: int
    loss_options: LossOptions
    read: ClassVar[Sequence[str]] = CausalLosses.read
    best_by: ClassVar[str] = "accuracy"
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")
    evaluates_by: ClassVar[Sequence[str]] = ("batch_size",)
    objects: ClassVar[str] = CHOICES_FORMAT

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return dict.fromkeys(LOSS_MASK_FEATURES, self.max_length)

    @classmethod
    def build(cls, parts: TaskParts) -> "MultipleChoice":
        """The task of a run; ValueError where the model is no decoder, or its positions do not
        reach as far as the rows."""
        length, vocab_size = parts.data.max_length, parts.vocab_sizes["text"]
        model = parts.make_model(DecoderOnly, reach=length, vocab_size=vocab_size)
        return cls(model, parts.tokenizers, length, parts.loss)

    @functools.cached_property
    def losses(self) -> CausalLosses:
        """Of the model, on contexts with a choice."""
        return CausalLosses(self.model, self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def prepare(self, examples: Corpus, training: bool) -> LossMaskedTexts:
        """Contexts with their right choices."""
        tokenizer, rows = self.tokenizers.text("text"), []
        for example in examples:
            (context, choices), answer = _question(example), int(example["answer"])
            follows = choice_continuation(context, choices[answer])
            read, counted = split_tokens(tokenizer, context, follows)
            rows.append(([*read, *counted], [False] * len(read) + [True] * len(counted)))
        return LossMaskedTexts.from_texts(rows)

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """A row as it is."""
        return example

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of the right choice's tokens given all before them."""
        return self.losses(params, batch, rng)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Loss and perplexity of a token of the right choices."""
        found = compute_metrics(sums)
        del found["accuracy"]  # of tokens; accuracy is of choices
        return found

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """As `multiple_choice`, and the likeliest choice of each example."""
        questions = [_question(example) for example in examples]
        scores = self._scores(params, questions, decode.batch_size)
        choices = [texts for _, texts in questions]
        answers = [int(example["answer"]) for example in examples]
        outputs = [_ranked(*each)[0] for each in zip(choices, scores, strict=True)]
        return multiple_choice(scores, choices, answers), outputs

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The `num_outputs` likeliest choices of each line, an object {"context": text, "choices":
        [text, ...]}, with their log-probabilities in nats; UserError for any other line."""
        questions = []
        for number, line in enumerate(lines, first_line):
            try:
                questions.append(parse_question(line))
            except ValueError as error:
                raise UserError(f"line {number}: {error}") from error
        scores = self._scores(params, questions, decode.batch_size)
        for (_, choices), found in zip(questions, scores, strict=True):
            yield _ranked(choices, found)[: decode.num_outputs]

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """As `LanguageModeling.score`."""
        tokenizer, pairs = self.tokenizers.text("text"), zip(sources, targets, strict=True)
        return self.losses.score_texts(params, tokenizer, pairs, self.max_length, batch_size)

    def _scores(
        self, params: Params, questions: Sequence[Question], batch_size: int
    ) -> list[list[float]]:
        """log P of each choice behind its context."""
        pairs = [
            (context, choice_continuation(context, choice))
            for context, choices in questions
            for choice in choices
        ]
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        found = iter(self.score(params, sources, targets, batch_size))
        return [[next(found).log_prob for _ in choices] for _, choices in questions]


def _question(example: Mapping[str, str]) -> Question:
    return example["context"], json.loads(example["choices"])


def _ranked(choices: Sequence[str], log_probs: Sequence[float]) -> list[Prediction]:
    """The choices, likeliest first."""
    found = [Prediction(*one) for one in zip(choices, log_probs, strict=True)]
    return sorted(found, key=lambda one: -one.score)
