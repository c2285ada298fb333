"""Text in, numbers out: metrics of a task's outputs, one file each; no model is known here."""

from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.registry import Registry
from transformer_jax.scoring.bleu import score_translations
from transformer_jax.scoring.exact_match import exact_match

METRICS: Registry[Callable[[Sequence[str], Sequence[str]], dict[str, Any]]] = Registry(
    "task.metric", {"bleu": score_translations, "exact_match": exact_match}
)
"""(outputs, references) -> metrics by name; that of the entry's own name, the higher the better,
chooses the best checkpoint."""
