# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a trained run on a split of its data, or on files."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.buckets.bucket import BucketError
from transformer_jax.buckets.copies import write_back
from transformer_jax.data.files.json_lines import read_choices
from transformer_jax.data.files.pairs import read_aligned
from transformer_jax.errors import MissingSplitError, UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import provenance
from transformer_jax.runs.build import build_evaluator
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.settings import Settings
from transformer_jax.tasks.interface import Params, Prediction, Task
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.multiple_choice import MultipleChoice
from transformer_jax.training.evaluation import Evaluator, write_predictions

logger = logging.getLogger(__name__)


def evaluator_of(
    settings: Settings,
    task: Task,
    decode: DecodeConfig,
    split: str | None,
    source: str | None,
    target: str | None,
) -> tuple[str, Evaluator]:
    """Builds the evaluator of a split, or of the files `source` and `target`.

    Without any of them it is the test split's, or the validation split's if there is no test split.

    Returns:
      (name of the split or of the source file, evaluator)

    Raises:
      UserError: the split or the files cannot be used, or one file is given without the other.
    """
    if source is not None and target is not None:
        if "source" not in task.tokenizers.sides:
            raise UserError(
                "evaluate: this run's task has no pairs of source and target; give --split"
            )
        name = Path(source).name
        open_examples = functools.partial(read_aligned, source, target, once=True)
    elif source is None and target is None:
        name = split or _default_split(settings)
        open_examples = functools.partial(open_data, settings, name)
    else:
        raise UserError("evaluate: source and target are files that go together; give both")
    examples = provenance.open_same_data(name, open_examples)
    mesh = mesh_for_inference(settings.parallel)
    return name, build_evaluator(settings, task, examples, decode, mesh)


def _default_split(settings: Settings) -> str:
    """The test split, or "valid" with a warning if there is none."""
    try:
        open_data(settings, "test")
    except MissingSplitError as error:
        logger.warning(
            "there is no test split (%s): scoring the validation split, which has also selected "
            "the best checkpoint",
            error,
        )
        return "valid"
    except UserError:  # reported for all processes of a job when the split is opened
        pass
    return "test"


def evaluate_choices(task: Task, params: Params, path: str, decode: DecodeConfig) -> dict[str, Any]:
    """Accuracy of a language model on a file of multiple-choice questions.

    Raises:
      UserError: the file cannot be used, or the run's task is not language modeling.
    """
    if not isinstance(task, LanguageModeling):
        raise UserError("--choices asks for a language model, and this run's task is another")
    examples = provenance.open_same_data(Path(path).name, lambda: read_choices(path))
    choosing = MultipleChoice(task.model, task.tokenizers, task.max_length, task.loss_options)
    metrics, _ = choosing.evaluate(params, examples, decode)
    return {**metrics, "num_examples": len(examples), "split": Path(path).name}


def keep_outputs(path: Path, evaluator: Evaluator, outputs: Sequence[Prediction]) -> None:
    """Writes outputs; only logs a warning if that fails, so that the metrics are not lost."""

    def keep() -> None:
        try:
            write_predictions(path, evaluator.decoded_examples, outputs)
            write_back(path)
        except (OSError, BucketError) as error:
            logger.warning("the outputs are not kept: %s", error)

    hosts.run_on_primary(keep)
