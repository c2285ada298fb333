# SPDX-License-Identifier: Apache-2.0
"""Metrics of outputs. Nothing here knows a model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.registry import Registry
from transformer_jax.scoring.text import (
    exact_match,
    rouge,
    score_translations,
    translation_edit_rate,
    word_error_rate,
)

Score = Callable[[Sequence[str], Sequence[str]], dict[str, Any]]
"""(outputs, references) -> metrics by name. One metric has the name of the entry."""


@dataclasses.dataclass(frozen=True)
class LowerIsBetter:
    """An entry of `METRICS` whose lowest value is the best."""

    score: Callable[..., dict[str, Any]]

    def __call__(
        self, outputs: Sequence[str], references: Sequence[str], **options: Any
    ) -> dict[str, Any]:
        return self.score(outputs, references, **options)


METRICS: Registry[Score] = Registry(
    "task.metric",
    {
        "bleu": score_translations,
        "bleu_lowercase": score_translations,
        "exact_match": exact_match,
        "rougeL": rouge,
        "ter": LowerIsBetter(translation_edit_rate),
        "wer": LowerIsBetter(word_error_rate),
    },
)
"""Metrics by name. The metric with the entry's own name selects the best checkpoint: the highest
value, or with `LowerIsBetter` the lowest."""


PARSEVAL = ("f1", "precision", "recall", "exact_match", "tag_accuracy")
"""Metrics of `scoring.parseval.parseval`."""


def best_by(name: str) -> str:
    """`Task.best_by` of an entry: its name, or "-name" if lower is better."""
    return f"-{name}" if isinstance(METRICS[name], LowerIsBetter) else name


_HIGHER_IS_BETTER = ("accuracy", "matthews", "chrf", "rouge1", "rouge2", *PARSEVAL)
"""Metrics that are no entries of `METRICS` themselves."""
_LOWER_IS_BETTER = ("loss", "train_loss", "perplexity", "word_perplexity", "bits_per_byte", "nll")


def lower_is_better(metric: str) -> bool:
    """Returns True for a metric, or that of a corpus ("gutenberg/loss"), whose lowest value is the
    best: losses, and entries of `METRICS` that say so."""
    name = metric.rpartition("/")[2]
    return name in _LOWER_IS_BETTER or isinstance(METRICS.get(name), LowerIsBetter)


def require_direction(metric: str, better: str) -> None:
    """Raises UserError if "lower" values of a metric are said to be better whose highest is the
    best: "lower" is what claims and nights take it to be if nothing is said."""
    name = metric.rpartition("/")[2]
    is_known = name in METRICS or name in _HIGHER_IS_BETTER
    if better == "lower" and is_known and not lower_is_better(metric):
        raise UserError(f"higher {metric} is better, but better is 'lower'; write better='higher'")
