"""Tasks by the name that `task.name` gives."""

from functools import partial

from transformer_jax.scoring.exact_match import exact_match
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.masked_lm import MaskedLanguageModeling
from transformer_jax.tasks.tagging import Tagging
from transformer_jax.tasks.translation import Translation

_PAIRS = {"source": ("source",), "target": ("target",)}
_TEXT = {"text": ("text",)}

TASKS = {
    "translation": TaskKind(Translation.build, _PAIRS),
    "seq2seq": TaskKind(
        partial(Translation.build, compare=exact_match, best_by="exact_match"), _PAIRS
    ),
    "language_modeling": TaskKind(LanguageModeling.build, _TEXT),
    "masked_lm": TaskKind(MaskedLanguageModeling.build, _TEXT),
    "classification": TaskKind(
        Classification.build, {"text": ("text", "pair")}, {"label": lambda label: [label]}
    ),
    "tagging": TaskKind(Tagging.build, _TEXT, {"tags": str.split}),
}
