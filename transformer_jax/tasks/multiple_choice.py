# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: selects the likeliest of several continuations of a context.

B batch, T tokens.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer_jax.data.batches.loss_masks import LOSS_MASK_FEATURES, LossMaskedTexts
from transformer_jax.data.examples import Corpus, Features, map_corpora
from transformer_jax.data.files.json_lines import choice_continuation, parse_question
from transformer_jax.errors import user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.metrics import compute_metrics
from transformer_jax.scoring.labels import multiple_choice_accuracy
from transformer_jax.tasks.base import CausalTask
from transformer_jax.tasks.interface import Evaluation, Params, Prediction
from transformer_jax.tasks.losses import ContextTarget, split_tokens, with_loss_mask

Question = tuple[str, Sequence[str]]
"""A context, and the choices of its continuation."""


@dataclasses.dataclass(frozen=True, repr=False)
class MultipleChoice(CausalTask):
    """Multiple choice with a decoder-only model on {"context", "choices", "answer"}: the answer is
    the choice with the highest probability. The training loss is that of the right choice's tokens.
    """

    features: ClassVar[Sequence[str]] = LOSS_MASK_FEATURES
    best_by: ClassVar[str] = "accuracy"
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")
    evaluates_by: ClassVar[Sequence[str]] = ("batch_size",)
    decodes: ClassVar[bool] = False

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Features]:
        """Returns each context with its right choice, whose tokens count."""
        return map_corpora(examples, self._right_choices)

    def _right_choices(self, examples: Corpus) -> LossMaskedTexts:
        rows = []
        for example in examples:
            context, choices = _question(example)
            right = choices[int(example["answer"])]
            rows.append(with_loss_mask(*self._split(context, right)))
        return LossMaskedTexts.from_texts(rows)

    def _split(self, context: str, choice: str) -> ContextTarget:
        target = choice_continuation(context, choice)
        return split_tokens(self.tokenizers.text("text"), context, target)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns loss and perplexity of a token of the right choices."""
        metrics = compute_metrics(sums)
        del metrics["accuracy"]  # of tokens; the reported accuracy is that of choices
        return metrics

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns the scores of `multiple_choice_accuracy`, and the likeliest choice of each
        example."""
        questions = [_question(example) for example in examples]
        scores = self._scores(params, questions, decode.batch_size)
        choices = [texts for _, texts in questions]
        answers = [int(example["answer"]) for example in examples]
        outputs = [_ranked(*scored)[0] for scored in zip(choices, scores, strict=True)]
        return multiple_choice_accuracy(scores, choices, answers), outputs

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the `num_outputs` likeliest choices of each line, an object {"context": text,
        "choices": [text, ...]}, with their log-probabilities in nats. Raises UserError for any
        other line."""
        questions = []
        for number, line in enumerate(lines, first_line):
            with user_errors(f"line {number}"):
                questions.append(parse_question(line))
        scores = self._scores(params, questions, decode.batch_size, first_line)
        for (_, choices), log_probs in zip(questions, scores, strict=True):
            yield _ranked(choices, log_probs)[: decode.num_outputs]

    def _scores(
        self, params: Params, questions: Sequence[Question], batch_size: int, first_line: int = 1
    ) -> list[list[float]]:
        """log P of each choice given its context."""
        sizes = [len(choices) for _, choices in questions]
        numbers = np.repeat(np.arange(first_line, first_line + len(sizes)), sizes).tolist()
        pairs = [self._split(context, choice) for context, texts in questions for choice in texts]
        scores = iter(self.score_tokens(params, pairs, batch_size, numbers))
        return [[next(scores).log_prob for _ in choices] for _, choices in questions]


def _question(example: Mapping[str, str]) -> Question:
    return example["context"], json.loads(example["choices"])


def _ranked(choices: Sequence[str], log_probs: Sequence[float]) -> list[Prediction]:
    """The choices with their scores, likeliest first."""
    predictions = [Prediction(*pair) for pair in zip(choices, log_probs, strict=True)]
    return sorted(predictions, key=lambda prediction: -prediction.score)
