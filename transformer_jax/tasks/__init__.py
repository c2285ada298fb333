"""Tasks by the name that `task.name` gives."""

from transformer_jax.tasks.translation import Translation

TASKS = {"translation": Translation}
