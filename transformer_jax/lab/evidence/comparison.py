# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs: what differs between them, and whether their metrics do.

Several seeds of each run are compared over seeds; the outputs of one seed of each on the same test
set are compared over examples.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.checkpoints.step_folder import PROVENANCE
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.errors import UserError, escape_controls
from transformer_jax.lab.evidence.example_loss import compare_losses
from transformer_jax.lab.pictures import Records, draw_curves
from transformer_jax.lab.sweeps.results import last_validation
from transformer_jax.runs.config import load_json
from transformer_jax.runs.settings import is_validation_field
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    read_metrics,
    read_predictions,
    seed_workdirs,
    workdir_path,
)
from transformer_jax.scoring import METRICS
from transformer_jax.scoring.labels import classification_scores
from transformer_jax.scoring.parseval import parseval
from transformer_jax.scoring.significance import PairedScores, significance_of
from transformer_jax.scoring.statistics import SeedTest, compare_seeds, mean_line, seeds_line
from transformer_jax.suggestions import suggest
from transformer_jax.summary import Summarized
from transformer_jax.tasks import TASKS

if TYPE_CHECKING:
    from transformer_jax.lab.pictures.style import Picture

_NO_METRICS = ("step", "time", "num_examples", "padding", "overlong", "words")
"""Numbers of a validation record that measure no quality."""
_BY_TOKENS = ("loss", "perplexity", "accuracy", "nll")
"""Metrics per token, which other tokens change."""
_MOST_EXAMPLES = 10  # shown for each run


class ExampleTest(NamedTuple):
    """Test of a score over the examples of a test set, for one seed of a run and of the first."""

    name: str
    scores: PairedScores


class Disagreement(NamedTuple):
    """An example on which two runs differ, with their outputs."""

    example: Mapping[str, Any]
    outputs: tuple[str, str]


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Summarized):
    """Result of `compare`; the first run is the base of all differences.

    Attributes:
      names: of the runs.
      differing: config field, or part of the provenance -> value of each run, where they differ.
      values: metric -> run -> last validation value of each seed.
      over_seeds: tests over seeds; empty if a run has one seed.
      over_examples: tests over the examples of a split; empty if a run has no outputs of it.
      disagreements: run -> the examples on which it differs most from the first.
      notes: what was not tested, and why.
      records: run -> the records of each seed.
    """

    names: tuple[str, ...]
    differing: Mapping[str, tuple[Any, ...]]
    values: Mapping[str, Mapping[str, Sequence[float]]]
    over_seeds: Sequence[SeedTest]
    over_examples: Sequence[ExampleTest]
    disagreements: Mapping[str, Sequence[Disagreement]]
    notes: Sequence[str]
    records: Mapping[str, Sequence[Records]]

    def summary(self) -> Mapping[str, Any]:
        """The differences, the tests, and what was not tested."""
        summary = {"runs": ", ".join(self.names)}
        summary["differ in"] = ", ".join(self.differing) or "nothing"
        for over_seeds in self.over_seeds:
            summary[f"{over_seeds.name}: {over_seeds.metric}"] = seeds_line(over_seeds)
        for test in self.over_examples:
            summary[f"{test.name}: {test.scores.metric}"] = _examples_line(test.scores)
        return summary | dict.fromkeys(self.notes, "")

    def plot(self) -> "Picture":
        """Curves of the runs over each other, with bands over seeds."""
        return draw_curves(self.records)

    def as_json(self) -> dict[str, Any]:
        """All but the curves as JSON."""
        return {
            "runs": self.names,
            "differing": self.differing,
            "values": self.values,
            "over_seeds": [_test_json(test) for test in self.over_seeds],
            "over_examples": [
                {"run": test.name, **test.scores._asdict()} for test in self.over_examples
            ],
            "notes": self.notes,
        }

    def as_text(self) -> str:
        """All but the curves and examples as text."""
        lines = ["What differs:"]
        for field, values in self.differing.items():
            lines.append(f"  {field}: " + " | ".join(escape_controls(str(v)) for v in values))
        if not self.differing:
            lines.append("  nothing")
        lines += ["", "Validation, mean ± deviation over seeds:"]
        for metric, of_runs in self.values.items():
            shown = " | ".join(mean_line(of_runs[name]) for name in self.names)
            lines.append(f"  {metric}: {shown}")
        if self.over_seeds:
            lines += ["", f"Over seeds, compared with {self.names[0]}:"]
            lines += [f"  {t.name}, {t.metric}: {seeds_line(t)}" for t in self.over_seeds]
        if self.over_examples:
            lines += ["", f"Over examples, compared with {self.names[0]}:"]
            for test in self.over_examples:
                name = f"{test.name}, {test.scores.metric}"
                lines.append(f"  {name}: {_examples_line(test.scores)}")
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])


def compare(
    *workdirs: str | Path,
    split: str = "test",
    metrics: Sequence[str] = (),
    loss: bool = False,
    modules: Modules = (),
    overrides: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compares runs with the first one.

    Args:
      *workdirs: two or more; the folder of `train --seeds` or of a sweep's row is a run of several
        seeds.
      split: whose outputs are compared over examples; `evaluate --split=...` writes them.
      metrics: validation metrics to test over seeds; empty: all that the runs have in common.
      loss: also compute and test the loss per example of the split, with one seed of each run.
      modules: the user's own, to load runs for their loss.
      overrides: places of the data for their loss, {"data.field": value}.

    Raises:
      UserError: fewer than two runs, a run has no records, runs were validated on other data, a
        metric is missing or cannot be compared, or outputs are of other test sets.
    """
    if len(workdirs) < 2:
        raise UserError("compare: give at least two runs")
    folders = [workdir_path(workdir) for workdir in workdirs]
    names = tuple(_distinct_names(folders))
    seeds = {name: seed_workdirs(folder) for name, folder in zip(names, folders, strict=True)}
    first_seeds = [of_run[0] for of_run in seeds.values()]
    differing = _config_differences(first_seeds) | _provenance_differences(first_seeds)
    _require_same_validation(differing, names)
    records = {name: [read_metrics(seed) for seed in of_run] for name, of_run in seeds.items()}
    same_tokens = not any(field.startswith("tokenizer of ") for field in differing)
    values = _common_metrics(records, metrics, same_tokens)
    over_seeds, notes = _test_seeds(values, names)
    if not same_tokens:
        notes.append(
            "The runs have other tokens, so metrics per token (loss, perplexity, accuracy) are not "
            "compared."
        )
    outputs = _outputs(seeds, split)
    if outputs is None:
        notes.append(f"No test over examples: evaluate --split={split} has not scored every run.")
    over_examples, disagreements = _test_examples(first_seeds, outputs or {}, names, split)
    if loss:
        folders_of = dict(zip(names, first_seeds, strict=True))
        losses = compare_losses(folders_of, split, same_tokens, modules, overrides)
        over_examples += [ExampleTest(name, scores) for name, scores in losses.items()]
    return Comparison(
        names, differing, values, over_seeds, over_examples, disagreements, notes, records
    )


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    for parts in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"compare: {folders[0]} is given twice; give runs that differ")


def _config_differences(folders: Sequence[Path]) -> dict[str, tuple[Any, ...]]:
    """Fields whose values differ, without the seed and the places of data."""
    configs = [load_json(folder / CONFIG).values for folder in folders]
    ignored = ("seed", "data.dir", "data.cache_dir")
    differing = {}
    for name in dict.fromkeys(name for fields in configs for name in fields):
        values = tuple(fields.get(name) for fields in configs)
        if name not in ignored and any(value != values[0] for value in values):
            differing[name] = values
    return differing


def provenance_of(workdir: Path) -> dict[str, str]:
    """Provenance of a run's newest checkpoint (`runs.provenance`)."""
    return open_snapshot(workdir / CHECKPOINTS, "latest", (PROVENANCE,)).provenance


def _provenance_differences(folders: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """Training data, tokenizers and code whose digests differ."""
    provenances = list(map(provenance_of, folders))
    differing = {}
    for part in dict.fromkeys(part for digests in provenances for part in digests):
        values = tuple(digests.get(part, "unknown") for digests in provenances)
        if len(set(values)) > 1:
            differing[part] = values
    return differing


def _require_same_validation(
    differing: Mapping[str, tuple[Any, ...]], names: Sequence[str]
) -> None:
    for field, values in differing.items():
        if is_validation_field(field):
            raise UserError(
                f"compare: {names[0]} and the others were not scored on the same examples: {field} "
                f"is {' and '.join(map(repr, dict.fromkeys(values)))}"
            )


def _common_metrics(
    records: Mapping[str, Sequence[Records]], wanted: Sequence[str], same_tokens: bool
) -> dict[str, dict[str, list[float]]]:
    """Metric -> run -> last validation value of each seed.

    Raises:
      UserError: a run has no validation record, or a wanted metric is missing or per token while
        the tokens differ.
    """
    last = {run: [_last_valid(seed, run) for seed in seeds] for run, seeds in records.items()}
    validations = [record for of_run in last.values() for record in of_run]
    common = [
        name
        for name in validations[0]
        if name not in _NO_METRICS and all(_is_number(record.get(name)) for record in validations)
    ]
    by_tokens = [] if same_tokens else [name for name in common if name in _BY_TOKENS]
    for name in wanted:
        if name not in common:
            hint = suggest(name, common) or f"; they have {', '.join(common)}"
            raise UserError(f"compare: not every run has the validation metric {name!r}{hint}")
        if name in by_tokens:
            raise UserError(
                f"compare: {name} is per token, and the runs have other tokenizers; compare "
                "bits_per_byte or a score of the outputs"
            )
    chosen = [name for name in wanted or common if name not in by_tokens]
    return {
        name: {run: [float(record[name]) for record in seeds] for run, seeds in last.items()}
        for name in chosen
    }


def _last_valid(records: Records, name: str) -> Mapping[str, Any]:
    record = last_validation(records)
    if not record:
        raise UserError(f"compare: {name} has no validation record yet")
    return record


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _test_seeds(
    values: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str]
) -> tuple[list[SeedTest], list[str]]:
    """Tests of each metric of each run against the first, and what was not tested."""
    counts = {name: len(next(iter(values.values()))[name]) for name in names} if values else {}
    single = [name for name, count in counts.items() if count < 2]
    if single:
        return [], [
            f"No test over seeds, because these have only one seed: {', '.join(single)}. Train "
            "more with --seeds, or compare outputs over examples (--split)."
        ]
    return [test for metric in values for test in compare_seeds(metric, values[metric])], []


def _outputs(
    seeds: Mapping[str, Sequence[Path]], split: str
) -> dict[str, list[dict[str, Any]]] | None:
    """Outputs of the first seed of each run; None if one has not scored the split."""
    try:
        return {name: read_predictions(of_run[0], split) for name, of_run in seeds.items()}
    except UserError:
        return None


def _test_examples(
    folders: Sequence[Path],
    outputs: Mapping[str, Sequence[dict[str, Any]]],
    names: Sequence[str],
    split: str,
) -> tuple[list[ExampleTest], dict[str, list[Disagreement]]]:
    """Tests over examples, and the examples that differ most; none without outputs.

    Raises:
      UserError: the outputs are of other examples.
    """
    if not outputs:
        return [], {}
    first = outputs[names[0]]
    task = load_json(folders[0] / CONFIG).task
    tests: list[ExampleTest] = []
    disagreements = {}
    for name in names[1:]:
        second = outputs[name]
        if list(map(_example, first)) != list(map(_example, second)):
            raise UserError(
                f"compare: the outputs of {names[0]} and {name} on {split} are of other examples "
                f"({len(first)} and {len(second)}); evaluate both on the same data"
            )
        key = _reference_key(first[0])
        if key is None:
            continue
        first_outputs = [str(record["output"]) for record in first]
        second_outputs = [str(record["output"]) for record in second]
        references = [str(record[key]) for record in first]
        metric, score = _score_of(task, key, references)
        test = significance_of(metric, score)
        for scores in test(first_outputs, second_outputs, references):
            tests.append(ExampleTest(name, scores))
        disagreements[name] = _most_different(first, first_outputs, second_outputs)
    return tests, disagreements


def _example(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("output", "score")}


def _reference_key(record: Mapping[str, Any]) -> str | None:
    for key in ("target", "label", "tags"):
        if key in record:
            return key
    return None


def _score_of(task: Any, key: str, references: Sequence[str]) -> tuple[str, Any]:
    """Name and function of the corpus score that is tested."""
    match key:
        case "label":
            labels = sorted(set(references))
            return "accuracy", functools.partial(classification_scores, labels=labels)
        case "tags":
            return "accuracy", _tag_accuracy
    if task.name == "parsing":
        return "f1", parseval
    metric = task.metric or TASKS[task.name].metric or "exact_match"
    return metric, METRICS.find(metric)


def _tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    is_right = [
        tag == right
        for output, reference in zip(outputs, references, strict=True)
        for tag, right in zip(output.split(), reference.split(), strict=True)
    ]
    return {"accuracy": sum(is_right) / len(is_right)}


def _most_different(
    records: Sequence[Mapping[str, Any]], first: Sequence[str], second: Sequence[str]
) -> list[Disagreement]:
    """Examples whose outputs share the fewest words, first those of most words."""

    def shared(disagreement: Disagreement) -> tuple[float, int]:
        words, other_words = (set(output.split()) for output in disagreement.outputs)
        num_words = len(words | other_words) or 1
        return len(words & other_words) / num_words, -num_words

    disagreements = [
        Disagreement(_example(record), (output, other))
        for record, output, other in zip(records, first, second, strict=True)
        if output != other
    ]
    return sorted(disagreements, key=shared)[:_MOST_EXAMPLES]


def _examples_line(scores: PairedScores) -> str:
    """One line: both scores, difference, p-values, and the verdict."""
    line = f"{scores.first:.4g} -> {scores.second:.4g} ({scores.difference:+.3g})"
    if scores.interval is not None:
        line += " [{:.3g}, {:.3g}]".format(*scores.interval)
    line += f", p = {scores.p:.2g}"
    if scores.p_bootstrap is not None:
        line += f", bootstrap {scores.p_bootstrap:.2g}"
    return f"{line}: {'differs' if scores.differs else 'undecided'}"


def _test_json(test: SeedTest) -> dict[str, Any]:
    fields = {name: value for name, value in test._asdict().items() if name != "difference"}
    return fields | {"difference": dataclasses.asdict(test.difference)}
