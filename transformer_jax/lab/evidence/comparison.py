# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs: what differs between them, and whether their metrics do.

Several seeds of each run are compared over seeds; the outputs of one seed of each on the same test
set are compared over examples, and if asked for the bits that it needs for each reference, a byte:
a model that tokenizes text without loss gives it a probability whatever its tokens are.
"""

import base64
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.checkpoints.manifest import item_id
from transformer_jax.checkpoints.step_folder import PARAMS, PROVENANCE, step_folders
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.errors import UserError
from transformer_jax.lab.analysis.pages import page
from transformer_jax.lab.evidence.verdicts import digest_of
from transformer_jax.lab.pictures import draw_curves
from transformer_jax.lab.pictures.curves import Records
from transformer_jax.lab.pictures.style import MARK, rendered
from transformer_jax.lab.report import Report, difference_cells, shown_mean, shown_name, with_nan
from transformer_jax.lab.sweeps.results import (
    PLACES,
    differing,
    last_validation,
    require_same_validation,
)
from transformer_jax.logs.records import to_json
from transformer_jax.runs.config import load_json, override
from transformer_jax.runs.evaluate import selecting_metrics
from transformer_jax.runs.load import load
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.provenance import STEP, newest_checkpoint
from transformer_jax.runs.run import Run
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    Predictions,
    read_metrics,
    read_predictions,
    seed_workdirs,
    workdir_path,
)
from transformer_jax.scoring import METRICS
from transformer_jax.scoring.command import is_number
from transformer_jax.scoring.labels import classification_scores
from transformer_jax.scoring.parseval import parseval
from transformer_jax.scoring.significance import PairedScores, compare_outputs
from transformer_jax.scoring.statistics import SeedTest, compare_seeds, over_examples
from transformer_jax.suggestions import suggest
from transformer_jax.tasks import TASKS

_NO_METRICS = (
    *("step", "time", "num_examples", "num_all_examples", "num_loss_examples"),
    *("padding", "overlong", "words", "train_loss"),
)
"""Numbers of a validation record that measure no quality."""
_BY_TOKENS = ("loss", "perplexity", "accuracy", "nll")
"""Metrics per token, which other tokens change."""
_FREE = ("seed", *PLACES)
"""Fields that differ between equal runs."""
_OF_ONE_RUN = ("checkpoints", "config", "outputs", STEP)
"""Digests that differ between any two runs."""
_MOST_EXAMPLES = 10  # shown for each run


def compare(
    *workdirs: str | Path,
    split: str = "test",
    metrics: Sequence[str] = (),
    loss: bool = False,
    modules: Modules = (),
    overrides: Mapping[str, Any] | None = None,
) -> Report:
    """Compares runs with the first one.

    Args:
      *workdirs: two or more; the folder of `train --seeds` or of a sweep's row is a run of several
        seeds.
      split: whose outputs are compared over examples; `evaluate --split=...` writes them.
      metrics: validation metrics to test over seeds; empty: all that the runs have in common.
      loss: also compute and test the loss per example of the split, with one seed of each run.
      modules: the user's own, which the runs need.
      overrides: places of the data for their loss, {"data.field": value}.

    Raises:
      UserError: fewer than two runs, a run has no records, runs were validated on other data, a
        metric is missing or cannot be compared, or outputs are of other test sets.
    """
    if len(workdirs) < 2:
        raise UserError("compare: give at least two runs")
    folders = [workdir_path(workdir) for workdir in workdirs]
    names = _distinct_names(folders)
    seeds = {name: seed_workdirs(folder) for name, folder in zip(names, folders, strict=True)}
    first_seeds = {name: of_run[0] for name, of_run in seeds.items()}
    for workdir in first_seeds.values():  # their configs name components of the user's own
        load_modules(modules, workdir)
    digests = {name: run_digests(of_run) for name, of_run in seeds.items()}
    configs = {
        name: [load_json(seed / CONFIG) for seed in of_run] for name, of_run in seeds.items()
    }
    fields = {name: of_run[0].values for name, of_run in configs.items()}
    differences = differing(*fields.values(), ignored=_FREE)
    differences |= differing(*digests.values(), ignored=_OF_ONE_RUN)
    require_same_validation("compare", {name: {**fields[name], **digests[name]} for name in names})
    records = {name: [read_metrics(seed) for seed in of_run] for name, of_run in seeds.items()}
    # A label or tag is one, whatever the tokens of its text are.
    predicts_tokens = any(not TASKS[of_run[0].task.name].labels for of_run in configs.values())
    other_tokens = any(field.startswith("tokenizer of ") for field in differences)
    same_tokens = not (predicts_tokens and other_tokens)
    values = _common_metrics(records, metrics, same_tokens)
    numbers = {name: [config.seed for config in of_run] for name, of_run in configs.items()}
    paired = [name for name in names if numbers[name] == numbers[names[0]]]
    tests = [compare_seeds(metric, of_runs, paired) for metric, of_runs in values.items()]
    over_seeds = [*itertools.chain(*tests)]
    predictions, notes_on_outputs = _comparable_predictions(first_seeds, split, records)
    notes = [*_notes(records, same_tokens), *notes_on_outputs]
    outputs = {name: of_run.records for name, of_run in predictions.items()}
    for name, of_run in outputs.items():
        digests[name]["outputs"] = digest_of(of_run)
    over_examples, disagreements = _test_examples(first_seeds, outputs, split)
    if loss:
        over_examples += compare_losses(first_seeds, split, same_tokens, modules, overrides).items()
    record = {
        "runs": names,
        "differing": differences,
        "values": values,
        "over_seeds": list(map(_test_json, over_seeds)),
        "over_examples": [
            {"run": name, **test._asdict(), "difference": test.difference, "differs": test.differs}
            for name, test in over_examples
        ],
        "disagreements": disagreements,
        "outputs": {name: of_run.made_by for name, of_run in predictions.items()},
        "digests": digests,
        "notes": notes,
    }
    return Report(
        title=f"{', '.join(names[:-1])} and {names[-1]}",
        values=values,
        tests=over_seeds,
        tables=_tables(names, differences, values, over_seeds, over_examples),
        record=record,
        notes=notes,
        draw=lambda: draw_curves(records, selecting_metrics(first_seeds.values())),
    )


def _notes(records: Mapping[str, Sequence[Records]], same_tokens: bool) -> list[str]:
    """Sentences on what is not tested over seeds, or not alike, and why."""
    notes = []
    steps = {
        name: {last_validation(seed)["step"] for seed in of_run} for name, of_run in records.items()
    }
    if len(set.union(*steps.values())) > 1:
        of_runs = "; ".join(f"{name}: {sorted(of_run)}" for name, of_run in steps.items())
        notes.append(
            "The last validations are of different steps, as those of seeds that diverged or were "
            f"stopped are ({of_runs})."
        )
    single = [name for name, of_run in records.items() if len(of_run) < 2]
    if single:
        notes.append(
            f"No test over seeds, because these have only one seed: {', '.join(single)}. Train "
            "more with --seeds, or compare outputs over examples (--split)."
        )
    if not same_tokens:
        notes.append(
            "The runs have other tokens, so metrics per token (loss, perplexity, accuracy) are not "
            "compared."
        )
    return notes


def comparison_page(report: Report) -> str:
    """An HTML page of what differs, the tests, curves with bands, and examples side by side."""
    curves = base64.b64encode(rendered(report.plot(), "svg")).decode()
    record = report.as_json()
    data = record | {
        "title": report.title,
        "curves": f"data:image/svg+xml;base64,{curves}",
        "differing": {
            name: list(map(str, of_runs)) for name, of_runs in record["differing"].items()
        },
        "values": {
            metric: list(map(shown_mean, of_runs.values()))
            for metric, of_runs in report.values.items()
        },
    }
    styles = ("theme.css", "comparison.css")
    scripts = ("document.js", "tables.js", "comparison.js")
    return page(report.title, (*styles, "comparison.html", *scripts), data)


def _tables(
    names: Sequence[str],
    differences: Mapping[str, Sequence[Any]],
    values: Mapping[str, Mapping[str, Sequence[float]]],
    over_seeds: Sequence[SeedTest],
    over_examples: Sequence[tuple[str, PairedScores]],
) -> dict[str, list[list[str]]]:
    """The tables that are not empty, by heading."""
    marked = {(test.name, test.metric) for test in over_seeds if test.differs}
    what_differs = [["", *names]]
    for field, of_runs in differences.items():
        what_differs.append([field, *(shown_name(str(value)) for value in of_runs)])
    validation = [["", *names]]
    for metric, of_metric in values.items():
        line = [metric]
        for name, seeds in of_metric.items():
            line.append(shown_mean(seeds) + (f" {MARK}" if (name, metric) in marked else ""))
        validation.append(line)
    seed_cells = difference_cells(over_seeds)
    seed_cells[0] += ["p (permutation)", "Hedges' g"]
    for line, test in zip(seed_cells[1:], over_seeds, strict=True):
        line += [f"{test.p_permutation:.2g}", f"{test.difference.effect:.2g}"]
    header = ["", "metric", names[0], "run", "difference", "95% interval", "p", "p (bootstrap)", ""]
    tables = {
        "What differs": what_differs,
        f"Validation over seeds ({MARK} differs from {names[0]})": validation,
        f"Over seeds, compared with {names[0]}": seed_cells,
        f"Over examples, compared with {names[0]}": [
            header,
            *itertools.starmap(_example_cells, over_examples),
        ],
    }
    return {heading: cells for heading, cells in tables.items() if len(cells) > 1}


def _test_json(test: SeedTest) -> dict[str, Any]:
    difference = json.loads(to_json(dataclasses.asdict(test.difference)))  # null for infinite ends
    return {**test._asdict(), "difference": difference, "differs": test.differs}


def _example_cells(name: str, test: PairedScores) -> list[str]:
    scores = [f"{test.first:.4g}", f"{test.second:.4g}", f"{test.difference:+.3g}"]
    interval = "-" if test.interval is None else "{:.3g} to {:.3g}".format(*test.interval)
    bootstrap = "-" if test.p_bootstrap is None else f"{test.p_bootstrap:.2g}"
    verdict = "differs" if test.differs else "undecided"
    return [name, test.metric, *scores, interval, f"{test.p:.2g}", bootstrap, verdict]


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    paths = [folder.absolute().parts for folder in folders]
    for count in range(1, 1 + max(map(len, paths))):
        names = ["/".join(path[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"compare: {folders[0]} is given twice; give runs that differ")


def provenance_of(workdir: Path) -> dict[str, str]:
    """The provenance in a run's newest checkpoint."""
    return open_snapshot(workdir / CHECKPOINTS, "latest", (PROVENANCE,)).provenance


def run_digests(workdirs: Sequence[Path]) -> dict[str, str]:
    """Digests of what made a run's values: the newest checkpoint of each seed, and of the first
    seed the config and the provenance (`runs.provenance`: training data, tokenizers, code)."""
    checkpoints = [newest_checkpoint(step_folders(path / CHECKPOINTS)) for path in workdirs]
    fields = load_json(workdirs[0] / CONFIG).values
    return {
        "checkpoints": "; ".join(checkpoints),
        "config": digest_of({name: fields[name] for name in fields if name not in _FREE}),
        **provenance_of(workdirs[0]),
    }


def _common_metrics(
    records: Mapping[str, Sequence[Records]], wanted: Sequence[str], same_tokens: bool
) -> dict[str, dict[str, list[float]]]:
    """Metric -> run -> last validation value of each seed, NaN if it was not finite.

    Raises:
      UserError: a run has no validation record, or a wanted metric is missing or per token while
        the tokens differ.
    """
    last = {run: list(map(last_validation, seeds)) for run, seeds in records.items()}
    for run, validations in last.items():
        if not all(validations):
            raise UserError(f"compare: {run} has no validation record yet")
    validations = [record for of_run in last.values() for record in of_run]
    common = []
    for name in validations[0]:
        values = [record.get(name, "") for record in validations]
        numbers = [value for value in values if value is not None]  # null: it was not finite
        if name not in _NO_METRICS and numbers and all(map(is_number, numbers)):
            common.append(name)
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
    return {
        name: {run: with_nan([record[name] for record in seeds]) for run, seeds in last.items()}
        for name in wanted or common
        if name not in by_tokens
    }


def _comparable_predictions(
    folders: Mapping[str, Path], split: str, records: Mapping[str, Sequence[Records]]
) -> tuple[dict[str, Predictions], list[str]]:
    """The outputs of each run, none if they were not made alike, and sentences on them.

    Args:
      folders: workdir of the first seed of each run.
    """
    try:
        predictions = {name: read_predictions(folder, split) for name, folder in folders.items()}
    except UserError:
        reason = f"evaluate --split={split} has not scored every run"
        return {}, [f"No test over examples: {reason}."]
    latest = {name: last_validation(of_run[0])["step"] for name, of_run in records.items()}
    reason = _why_unlike(predictions, folders, latest)
    if reason:
        return {}, [f"No test over examples: {reason}. Run evaluate --split={split} again."]
    steps = {name: of_run.step for name, of_run in predictions.items()}
    notes = []
    if steps != latest:
        of_runs = ", ".join(f"step {step} of {name}" for name, step in steps.items())
        notes.append(f"The outputs of {split} are those of the best checkpoints: {of_runs}.")
    return predictions, notes


def _why_unlike(
    predictions: Mapping[str, Predictions], folders: Mapping[str, Path], latest: Mapping[str, int]
) -> str:
    """The reason why outputs may not be tested against each other; empty if they may.

    Outputs of all runs are of the steps of their last validation, or all of the best checkpoints,
    and by one search, or each by the search of its run's config.
    """
    best = {name: _best_step(folder) for name, folder in folders.items()}
    steps = {name: of_run.step for name, of_run in predictions.items()}
    for name, of_run in predictions.items():
        if not of_run.made_by:
            return f"the outputs of {name} do not say what made them"
        saved = of_run.made_by["checkpoint"]
        here = item_id(folders[name] / CHECKPOINTS / str(of_run.step), PARAMS)
        if None not in (saved, here) and saved != here:
            return f"the outputs of {name} are of another checkpoint of step {of_run.step}"
        if steps != best and steps[name] != latest[name]:
            return (
                f"the outputs of {name} are of step {steps[name]}, its metrics of step "
                f"{latest[name]}"
            )
    configs = [load_json(folder / CONFIG).values for folder in folders.values()]
    choices = [
        {"average": made_by["average"], "changed": made_by["changed"]}
        | {f"decode.{field}": value for field, value in made_by["search"].items()}
        for made_by in (of_run.made_by for of_run in predictions.values())
    ]
    for name, values in differing(*choices, ignored=()).items():
        if values != tuple(config.get(name) for config in configs):
            return f"{name} of the outputs is {' and '.join(map(str, values))}"
    return ""


def _best_step(folder: Path) -> int | None:
    try:
        return open_snapshot(folder / CHECKPOINTS, "best", (PROVENANCE,)).step
    except UserError:
        return None


def _test_examples(
    folders: Mapping[str, Path], outputs: Mapping[str, Sequence[dict[str, Any]]], split: str
) -> tuple[list[tuple[str, PairedScores]], dict[str, list[dict[str, Any]]]]:
    """Tests over examples by run, and the examples that differ most; none without outputs.

    Raises:
      UserError: the outputs are of other examples.
    """
    if not outputs:
        return [], {}
    (base, first), *others = outputs.items()
    task = load_json(folders[base] / CONFIG).task
    keys = [key for key in ("target", "label", "tags") if key in first[0]]
    reference = keys[0] if keys else None
    tests: list[tuple[str, PairedScores]] = []
    disagreements = {}
    for name, second in others:
        if list(map(_example, first)) != list(map(_example, second)):
            raise UserError(
                f"compare: the outputs of {base} and {name} on {split} are of other examples "
                f"({len(first)} and {len(second)}); evaluate both on the same data"
            )
        if reference is None:
            continue
        first_outputs = [str(record["output"]) for record in first]
        second_outputs = [str(record["output"]) for record in second]
        references = [str(record[reference]) for record in first]
        metric, score = _score_of(task, reference, references)
        scores = compare_outputs(metric, score, first_outputs, second_outputs, references)
        tests += ((name, test) for test in scores)
        disagreements[name] = _most_different(first, first_outputs, second_outputs)
    return tests, disagreements


def _example(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("output", "score")}


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
    return metric, METRICS.configured(metric, task)


def _tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    is_right = [
        tag == right
        for output, reference in zip(outputs, references, strict=True)
        for tag, right in zip(output.split(), reference.split(), strict=True)
    ]
    return {"accuracy": sum(is_right) / len(is_right)}


def _most_different(
    records: Sequence[Mapping[str, Any]], first: Sequence[str], second: Sequence[str]
) -> list[dict[str, Any]]:
    """Examples whose outputs share the fewest words, first those of most words."""

    def shared(disagreement: dict[str, Any]) -> tuple[float, int]:
        words, other_words = (set(output.split()) for output in disagreement["outputs"])
        num_words = len(words | other_words) or 1
        return len(words & other_words) / num_words, -num_words

    disagreements = [
        {
            "example": {name: str(value) for name, value in _example(record).items()},
            "outputs": (output, other),
        }
        for record, output, other in zip(records, first, second, strict=True)
        if output != other
    ]
    return sorted(disagreements, key=shared)[:_MOST_EXAMPLES]


def compare_losses(
    folders: Mapping[str, Path],
    split: str,
    same_tokens: bool,
    modules: Modules = (),
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, PairedScores]:
    """Tests of each run against the first, over the examples of a split.

    Args:
      folders: name -> workdir of one seed.
      split: split of the runs' data.
      same_tokens: the runs have the same tokenizers.
      overrides: places of the data, {"data.field": value}.

    Raises:
      UserError: a run cannot score references, its split has other examples, or the tokenizers
        differ and one of them changes a text.
    """
    first_examples: list[Any] = []
    losses: dict[str, list[float]] = {}
    for name, folder in folders.items():
        run = load(folder, modules=modules)
        examples = list(open_data(override(run.settings, overrides or {}), split))
        if losses and examples != first_examples:
            first = next(iter(losses))
            raise UserError(
                f"compare: {first} and {name} have other examples in {split} "
                f"({len(first_examples)} and {len(examples)}); give them the same data"
            )
        first_examples = examples
        sources, targets, side = _pairs(run, examples, split)
        if not same_tokens:
            _require_lossless(run, side, targets, name)
        sizes = [max(1, len(target.encode())) for target in targets]  # an empty text has a byte
        nats = -np.array(run.score(sources, targets))
        losses[name] = (nats / math.log(2) / sizes).tolist()
    (_, base), *others = losses.items()
    return {name: _test(base, values) for name, values in others}


def _pairs(run: Run, examples: Sequence[Any], split: str) -> tuple[list[str], list[str], str]:
    """Sources, references, and the side of the references."""
    for source, target in (("source", "target"), (None, "text")):
        have_target = (isinstance(example, Mapping) and target in example for example in examples)
        if examples and all(have_target):
            sources = [example[source] if source else "" for example in examples]
            return sources, [example[target] for example in examples], target
    raise UserError(
        f"compare: the examples of {split} have no reference texts, so that a run of task "
        f"{run.settings.task.name} has no loss per example; leave --loss out"
    )


def _require_lossless(run: Run, side: str, texts: Sequence[str], name: str) -> None:
    tokenizer = run.tokenizer.text(side)
    for number, text in enumerate(texts, 1):
        if tokenizer.decode(tokenizer.encode(text)) != text:
            raise UserError(
                f"compare: the runs have other tokenizers, and that of {name} changes text (such "
                f"as example {number}), so that its loss is that of another text; leave --loss out"
            )


def _test(first: Sequence[float], second: Sequence[float]) -> PairedScores:
    test = over_examples(first, second)
    return PairedScores(
        metric="bits per byte",
        first=sum(first) / len(first),
        second=sum(second) / len(second),
        p=test.p,
        test=f"{test.test}, {len(first)} examples",
        interval=(test.low, test.high),
    )
