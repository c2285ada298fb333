"""Text in, numbers out: metrics of a task's outputs, one file each; no model is known here."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.registry import Registry
from transformer_jax.scoring.text import (
    exact_match,
    rouge,
    score_translations,
    translation_edit_rate,
    word_error_rate,
)

Score = Callable[[Sequence[str], Sequence[str]], dict[str, Any]]
"""(outputs, references) -> metrics by name."""


@dataclasses.dataclass(frozen=True)
class LowerIsBetter:
    """An entry of `METRICS` that counts errors."""

    score: Score

    def __call__(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        return self.score(outputs, references)


METRICS: Registry[Score] = Registry(
    "task.metric",
    {
        "bleu": score_translations,
        "exact_match": exact_match,
        "rougeL": rouge,
        "ter": LowerIsBetter(translation_edit_rate),
        "wer": LowerIsBetter(word_error_rate),
    },
)
"""(outputs, references) -> metrics by name; that of the entry's own name chooses the best
checkpoint: the higher the better, but of a `LowerIsBetter`."""


def best_by(name: str) -> str:
    """What the best checkpoint has most of, of an entry: its number, or "-number"."""
    return f"-{name}" if isinstance(METRICS[name], LowerIsBetter) else name
