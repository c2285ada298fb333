"""Tasks by the name that `task.name` gives: what builds the task from the model's class, the
settings, the vocabularies' sizes and the tokenizers."""

from functools import partial

from transformer_jax.scoring.exact_match import exact_match
from transformer_jax.tasks.translation import Translation

TASKS = {
    "translation": Translation.build,
    "seq2seq": partial(Translation.build, compare=exact_match, best_by="exact_match"),
}
