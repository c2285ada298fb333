"""From settings to the parts of a run."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.configuration import Settings
from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import Tokenizers, load_tokenizers, train_tokenizers
from transformer_jax.training.evaluation import Evaluator
from transformer_jax.training.optimizer import make_optimizer, make_schedule
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_train_step


def build_tokenizers(
    settings: Settings, directory: Path, examples: Sequence[dict[str, str]]
) -> Tokenizers:
    """Those in `directory`, trained on the examples and kept there first where there are none."""
    if directory.exists():
        return load_tokenizers(directory)
    texts = {side: map(itemgetter(side), examples) for side in examples[0]}
    return train_tokenizers(settings.tokenizer, texts, directory)


def build_task(
    settings: Settings, vocab_sizes: dict[str, int], tokenizers: Tokenizers | None
) -> Task:
    """The task with its model; no tokenizers are needed where no text is met.

    Args:
      settings: of the run.
      vocab_sizes: pieces of each side's vocabulary.
      tokenizers: of the run.

    Raises:
      UserError: an unknown task, architecture or choice of the model.
    """
    task = _entry(TASKS, settings.task.name, "task.name")
    model = _entry(MODELS, settings.model.architecture, "model.architecture")
    try:
        built = task.build(model, settings, vocab_sizes, tokenizers)
        jax.eval_shape(built.init, jax.random.key(0))  # a Flax module refuses its choices here
    except ValueError as error:
        raise UserError(f"config.model: {error}") from error
    return built


def vocab_sizes(tokenizers: Tokenizers) -> dict[str, int]:
    """Pieces of each side's vocabulary."""
    return {side: tokenizer.vocab_size for side, tokenizer in tokenizers.sides.items()}


def build_training(settings: Settings, task: Task):
    """The schedule, the pure training step, and a function from a seed to the first state."""
    schedule = make_schedule(settings.optimizer, settings.model.d_model)
    optimizer = make_optimizer(settings.optimizer, schedule)
    train_step = make_train_step(task.loss, optimizer, settings.train.accumulation_steps)

    def init_state(seed: int) -> TrainState:
        init_key, step_key = jax.random.split(jax.random.key(seed))
        return TrainState.create(task.init(init_key), optimizer, step_key)

    return schedule, train_step, init_state


def batch_rows(settings: Settings, task: Task) -> int:
    """Rows of a training batch; UserError where `train.tokens_per_batch` has no room for one."""
    try:
        return settings.train.rows(max(task.lengths.values()))
    except ValueError as error:
        raise UserError(f"config.train: {error}") from error


def batch_shapes(lengths: dict[str, int], rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a packed batch."""
    return {
        name: jax.ShapeDtypeStruct((rows, length), jnp.int32)
        for feature, length in lengths.items()
        for name in (feature, f"{feature}_segment_ids", f"{feature}_positions")
    }


def build_evaluator(
    settings: Settings,
    task: Task,
    examples: Sequence[Any],
    decode: Any,
    num_decoded: int | None = None,
) -> Evaluator:
    """Scores the task's parameters on examples, all of them decoded unless told how many."""
    return Evaluator(task, examples, decode, batch_rows(settings, task), num_decoded)


def _entry(registry: dict[str, Any], name: str, field: str) -> Any:
    if name not in registry:
        raise UserError(f"config.{field} is {name!r}, not one of {', '.join(registry)}")
    return registry[name]
