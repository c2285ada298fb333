"""The scores of the validation split while a run trains."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from transformer_jax.data.examples import Corpus
from transformer_jax.data.sources import open_parts, open_split
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runs import build, provenance
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.trainable import Scores
from transformer_jax.runs.workdir import PREDICTIONS
from transformer_jax.tasks.interface import Task
from transformer_jax.training.evaluation import Evaluator, with_command, write_predictions


def validation(settings: Settings, task: Task, mesh: Mesh) -> Callable[[int, Any, Path], Scores]:
    """(step, params, workdir) -> scores; the outputs are kept in the workdir.

    Raises:
      UserError: the validation split cannot be read, or not be evaluated, whatever the parameters;
        or `eval.best_corpus` is none of its corpora.
    """
    greedy = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    count = settings.eval.num_examples

    def evaluator_of(name: str, open_examples: Callable[[], Corpus]) -> Evaluator:
        examples = provenance.agreed_data(name, open_examples)
        made = build.build_evaluator(settings, task, examples, greedy, mesh, count)
        try:
            made.check()
        except UserError as error:
            raise UserError(f"the validation split cannot be evaluated: {error}") from error
        return made

    evaluator = evaluator_of("valid", lambda: open_split(settings.data, "valid"))
    corpora = open_parts(settings.data, "valid") if settings.eval.each_corpus else {}
    best = settings.eval.best_corpus
    if best is not None and best not in corpora:
        raise UserError(f"eval.best_corpus is {best!r}, which is none of {', '.join(corpora)}")
    parts = {
        name: evaluator_of(f"valid/{name}", lambda corpus=corpus: corpus)  # type: ignore[misc]
        for name, corpus in corpora.items()
    }

    def evaluate(step: int, params: Any, workdir: Path) -> Scores:
        metrics, outputs = evaluator(params)
        metrics = with_command(settings.eval.command, metrics, evaluator.decoded, outputs)
        path = workdir / PREDICTIONS / f"valid-{step}.jsonl"
        hosts.from_primary(lambda: write_predictions(path, evaluator.decoded, outputs))
        for name, part in parts.items():
            metrics |= {f"{name}/{metric}": value for metric, value in part(params)[0].items()}
        return metrics, score_of(metrics, chosen_by(settings, task))

    return evaluate


def chosen_by(settings: Settings, task: Task) -> str:
    """What the best checkpoint has most of: a metric of the validation records, or -metric."""
    corpus, metric = settings.eval.best_corpus, task.best_by.removeprefix("-")
    if corpus is None:
        return task.best_by
    return task.best_by.replace(metric, f"{corpus}/{metric}")


def score_of(metrics: Mapping[str, Any], best_by: str) -> float:
    """What the best checkpoint has most of: a metric, or -metric; NaN where a record has none."""
    name = best_by.removeprefix("-")
    value = metrics.get(name)
    return math.nan if value is None else value if name == best_by else -value
