# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a run: while it trains, and afterwards on a split of its data or on files."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from transformer_jax.buckets.bucket import BucketError
from transformer_jax.buckets.copies import write_back
from transformer_jax.data.examples import Corpus
from transformer_jax.data.sources import open_corpora, open_split
from transformer_jax.errors import MissingSplitError, UserError, user_errors
from transformer_jax.inference.config import DecodeConfig, search_options
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import mesh_for_inference
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.provenance import open_same_data
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import CONFIG, PREDICTIONS
from transformer_jax.tasks.interface import Params, Prediction, Task
from transformer_jax.training.evaluation import Evaluator, add_command_scores, write_predictions
from transformer_jax.training.state import TrainState

logger = logging.getLogger(__name__)

Scores = tuple[dict[str, Any], Any]
"""Metrics of the validation split, and the score that selects the best checkpoint (the highest);
for R replicas arrays [R]."""

_NAME_DIGITS = 8  # of a digest, in the name of evaluated files
_DECODED_EXAMPLES = 200  # of a validation split, if `eval.num_examples` is None


def evaluator_of(
    settings: Settings,
    task: Task,
    decode: DecodeConfig,
    split: str | None,
    source: str | None,
    target: str | None,
) -> tuple[str, Evaluator, str]:
    """Builds the evaluator of a split, or of the files `source` and `target`.

    Without any of them it is the test split's, or the validation split's if there is no test split.

    Returns:
      the split's name (of files that of `source` and a digest), evaluator, digest of its data.
    """
    if source is not None and target is not None:
        if "source" not in build.task_kind(settings).keys:
            raise UserError(
                "evaluate: this run's task has no pairs of source and target; give --split"
            )
        from transformer_jax.data.files.pairs import read_aligned

        name = Path(source).name
        open_examples = functools.partial(read_aligned, source, target, once=True)
    elif source is None and target is None:
        name = split or _default_split(settings)
        open_examples = functools.partial(open_data, settings, name)
    else:
        raise UserError("evaluate: source and target are files that go together; give both")
    examples, data = open_same_data(name, open_examples)
    if source is not None:
        name += f"-{data.rpartition(' ')[2][:_NAME_DIGITS]}"
    mesh = mesh_for_inference(settings.parallel)
    return name, build.build_evaluator(settings, task, examples, decode, mesh), data


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
    """Accuracy of a language model on a file of multiple-choice questions."""
    from transformer_jax.data.files.json_lines import read_choices
    from transformer_jax.tasks.language_modeling import LanguageModeling
    from transformer_jax.tasks.multiple_choice import MultipleChoice

    if not isinstance(task, LanguageModeling):
        raise UserError("--choices asks for a language model, and this run's task is another")
    examples, _ = open_same_data(Path(path).name, lambda: read_choices(path))
    choosing = MultipleChoice(task.model, task.tokenizers, task.max_length, task.loss_options)
    metrics, _ = choosing.evaluate(params, examples, decode)
    return {**metrics, "num_examples": len(examples), "split": Path(path).name}


def outputs_made_by(step: int, decode: DecodeConfig, task: Task, data: str) -> dict[str, Any]:
    """Provenance of the outputs of an evaluation, for the JSON file beside them.

    Args:
      data: digest of the examples (`runs.provenance.data_digest`).
    """
    return {
        "step": step,
        "checkpoint": None,  # not saved yet
        "average": None,
        "search": search_options(decode, task),
        "changed": {},
        "data": data,
    }


def keep_outputs(
    path: Path, evaluator: Evaluator, outputs: Sequence[Prediction], made_by: Mapping[str, Any]
) -> None:
    """Writes outputs; only logs a warning if that fails, so that the metrics are not lost."""

    def keep() -> None:
        try:
            write_predictions(path, evaluator.decoded_examples, outputs, made_by)
            if outputs:
                write_back(path)
                write_back(path.with_suffix(".json"))
        except (OSError, BucketError) as error:
            logger.warning("the outputs are not kept: %s", error)

    hosts.run_on_primary(keep)


def greedy_search(settings: Settings) -> DecodeConfig:
    """The search of the evaluations during training."""
    return dataclasses.replace(
        settings.decode, beam_size=1, num_outputs=1, draft=None, weights="float32"
    )


def validation(
    settings: Settings, task: Task, mesh: Mesh
) -> Callable[[int, TrainState, Path], Scores]:
    """Makes a function (step, state, workdir) -> scores that writes the outputs to the workdir.

    Raises:
      UserError: the validation split cannot be read or evaluated, whatever the parameters, or
        `eval.best_corpus` is not one of its corpora.
    """
    greedy = greedy_search(settings)
    count = settings.eval.num_examples
    if count is None and getattr(task, "decodes", True):
        count = _DECODED_EXAMPLES

    def checked_evaluator(name: str, open_examples: Callable[[], Corpus]) -> tuple[Evaluator, str]:
        examples, data = open_same_data(name, open_examples)
        evaluator = build.build_evaluator(settings, task, examples, greedy, mesh, count)
        with user_errors("the validation split cannot be evaluated", kinds=UserError):
            evaluator.check()
        return evaluator, data

    evaluator, data = checked_evaluator("valid", lambda: open_split(settings.data, "valid"))
    corpora = open_corpora(settings.data, "valid") if settings.eval.each_corpus else {}
    best = settings.eval.best_corpus
    if best is not None and best not in corpora:
        raise UserError(f"eval.best_corpus is {best!r}, which is none of {', '.join(corpora)}")
    corpus_evaluators = {
        name: checked_evaluator(f"valid/{name}", functools.partial(corpora.__getitem__, name))[0]
        for name in corpora
    }

    def evaluate(step: int, state: TrainState, workdir: Path) -> Scores:
        params = state.model_params
        metrics, outputs = evaluator(params, state.frozen)
        metrics = add_command_scores(
            settings.eval.command, metrics, evaluator.decoded_examples, outputs
        )
        path = workdir / PREDICTIONS / f"valid-{step}.jsonl"
        made_by = outputs_made_by(step, greedy, task, data)
        hosts.run_on_primary(
            lambda: write_predictions(path, evaluator.decoded_examples, outputs, made_by)
        )
        for name, evaluate_corpus in corpus_evaluators.items():
            corpus_metrics, _ = evaluate_corpus(params, state.frozen)
            metrics |= {f"{name}/{metric}": value for metric, value in corpus_metrics.items()}
        return metrics, score_of(metrics, selection_metric(settings, task))

    return evaluate


def selection_metric(settings: Settings, task: Task) -> str:
    """The metric that selects the best checkpoint, with a minus sign if lower is better."""
    corpus = settings.eval.best_corpus
    if corpus is None:
        return task.best_by
    metric = task.best_by.removeprefix("-")
    return task.best_by.replace(metric, f"{corpus}/{metric}")


def selecting_metrics(workdirs: Iterable[Path]) -> list[str]:
    """The metrics that select the best checkpoints of runs, each once; none of a run whose config
    cannot be read here."""
    names = []
    for workdir in workdirs:
        with contextlib.suppress(UserError):
            settings = load_json(workdir / CONFIG)
            task = build.build_untokenized_task(settings)
            names.append(selection_metric(settings, task).removeprefix("-"))
    return list(dict.fromkeys(names))


def score_of(metrics: Mapping[str, Any], selected_by: str) -> float:
    """The score of validation metrics, higher is better; NaN if the metric is missing."""
    name = selected_by.removeprefix("-")
    value = metrics.get(name)
    if value is None:
        return math.nan
    return -value if selected_by.startswith("-") else value
