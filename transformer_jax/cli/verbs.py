# SPDX-License-Identifier: Apache-2.0
"""One function for each verb.

Functions import what they need when they are called, so that `--help` answers without jax.
"""

import argparse
import ast
import dataclasses
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import batched
from pathlib import Path
from typing import Any

from transformer_jax.cli import terminal
from transformer_jax.cli.arguments import BENCHMARK_SIZES, DECODE_OPTIONS, PROGRAM
from transformer_jax.cli.lines import (
    LineCount,
    escape,
    example_reader,
    one_line,
    open_prefixes,
    read_batches,
)
from transformer_jax.cli.parser import CHAT_COMMANDS
from transformer_jax.errors import UserError
from transformer_jax.logs.records import to_json
from transformer_jax.runtime.files import write_atomic

logger = logging.getLogger(__name__)

_LINES_AT_ONCE = 512  # of stdin, to be predicted, embedded or scored together
_DIGITS = 4  # of numbers on a terminal
_LENGTH_FIELDS = ("data.max_length", "data.max_source_length", "data.max_target_length")
_PROCESS_FLAGS = (
    "config",
    "overrides",
    "workdir",
    "modules",
    "base",
    "coordinator",
    "num_processes",
    "process_id",
    "traceback",
)
"""Flags that may differ between the processes of a job, or that are compared in another way."""
_FILE_FLAGS = ("source", "target", "prefixes", "choices")
"""Flags whose files are compared between the processes of a job."""
_INDEX_PAGE = "index.html"


def quickstart(args: argparse.Namespace) -> None:
    """Trains the embedded task and prints what the run does."""
    from transformer_jax.runtime.platform import require_device
    from transformer_jax.tools.quickstart import quickstart as report

    require_device()
    for line in report(args.workdir, args.overrides):
        _write_result(line)
        terminal.flush()


def train(args: argparse.Namespace) -> None:
    """Trains a config in a workdir, or prints what that would take."""
    from transformer_jax.runs.config import resolve_file
    from transformer_jax.runtime.platform import require_device

    settings = _join_job(
        args, lambda: resolve_file(_config_path(args), args.overrides, args.modules)
    )
    require_device()
    if args.dry_run:
        from transformer_jax.tools.dry_run import describe

        _write_result(describe(settings))
    elif args.seeds:
        from transformer_jax.lab.sweeps.sweep import run_seeds

        _write_table(run_seeds(settings, args.workdir, args.seeds, args.modules))
    else:
        from transformer_jax.runs.train import train as train_run

        _print_next(train_run(settings, args.workdir, args.modules), args.workdir)


def _config_path(args: argparse.Namespace) -> str | Path:
    """The config file, or that of the run in --workdir, which is continued."""
    if args.config is not None:
        return str(args.config)
    from transformer_jax.runs.workdir import CONFIG, fetch_files

    path = fetch_files(args.workdir, (CONFIG,)) / CONFIG
    if not path.exists():
        raise UserError(
            f"{args.workdir} holds no run to continue; for a new one give its config, such as "
            "--config=quickstart"
        )
    return path


def _print_next(run: Any, workdir: str) -> None:
    """Prints the commands that use a run."""
    from transformer_jax.parallel import hosts

    if not hosts.is_primary():
        return
    flag = f"--workdir={shlex.quote(workdir)}"
    verb = "chat" if hasattr(run.task, "reply") else "predict"
    terminal.print_message("next:")
    terminal.print_message(f"  {PROGRAM} evaluate {flag}")
    terminal.print_message(f"  {PROGRAM} {verb} {flag}  # reads lines that you type")


def sweep(args: argparse.Namespace) -> None:
    """Trains the rows of a sweep that are not finished, and prints its table."""
    from transformer_jax.lab.sweeps.definition import load_sweep
    from transformer_jax.lab.sweeps.sweep import run_sweep
    from transformer_jax.runtime.platform import require_device

    require_device()
    loaded = load_sweep(args.sweep, **_given_flags(args, ("config", "seeds")))
    if args.plan:
        from transformer_jax.lab.sweeps.planning import plan_sweep

        planned = plan_sweep(
            loaded, args.workdir, args.overrides, chosen=args.rows, modules=args.modules
        )
        return _write_result(planned.as_text())
    rows = run_sweep(
        loaded, args.workdir, args.overrides, args.at_once, chosen=args.rows, modules=args.modules
    )
    _write_table(rows)
    # Rows of a search are sorted, the best first; it has 0 parameters if all diverged.
    if loaded.space and rows and rows[0].parameters:
        fields = {**loaded.base, **args.overrides, **rows[0].values}
        flags = [f"--config.{name}={value}" for name, value in fields.items()]
        words = [f"--config={loaded.config}", f"--workdir={args.workdir}-best", *flags]
        words += [f"--modules={','.join(args.modules)}"] if args.modules else []
        terminal.print_message(f"the best, {rows[0].name}:")
        terminal.print_message(f"  {PROGRAM} train {shlex.join(words)}")


def table(args: argparse.Namespace) -> None:
    """Prints the merged table of sweeps, and writes it with figures."""
    from transformer_jax.lab.sweeps import tables
    from transformer_jax.lab.sweeps.results import merge_tables, readable_folder, row_records
    from transformer_jax.lab.sweeps.tables import publish_tables

    rows = merge_tables(*args.folders)
    formats = {
        "text": tables.as_text_with_differences,
        "markdown": tables.as_markdown,
        "latex": tables.as_latex,
        "csv": tables.as_csv,
    }
    terminal.write(f"{formats[args.format](rows).rstrip()}\n")
    if args.to:
        names = [row.name for row in rows]
        records: dict[str, dict[str, Any]] = {}  # row -> seed -> its records
        for folder in args.folders:
            for name, seeds in row_records(readable_folder(folder), names).items():
                records.setdefault(name, {}).update(seeds)
        publish_tables(rows, records, Path(args.to))
        logger.info("wrote the tables and figures to %s", args.to)


def evaluate(args: argparse.Namespace) -> None:
    """Prints the metrics of a split or of two files as one JSON object."""
    examples = _examples_to_score(args)
    run = _load_in_job(args)
    if args.choices is None:
        options = _given_flags(args, ("command", *DECODE_OPTIONS))
        metrics = run.evaluate(**examples, **options)
    else:
        from transformer_jax.runs.evaluate import evaluate_choices

        metrics = evaluate_choices(run.task, run.params, args.choices, run.settings.decode)
        metrics |= run.identity
    _write_json(metrics)


def predict(args: argparse.Namespace) -> None:
    """Writes one line for each line of stdin; in a job, process 0 reads stdin for all."""
    from transformer_jax.parallel import hosts

    stdin = terminal.binary_stdin()  # a closed stdin is reported before a model is loaded
    run = _load_in_job(args)
    if args.stream:
        return _stream(run, _given_flags(args, DECODE_OPTIONS), stdin, _example_reader(args, run))
    options = _given_flags(args, (*DECODE_OPTIONS, "num_outputs"))
    to_line = escape if args.escape else one_line
    read_example = _example_reader(args, run)
    prefixes_of = open_prefixes(args.prefixes, _text_reader(args))
    batches = read_batches(stdin, most=_LINES_AT_ONCE)
    first_line = 1
    with LineCount("predicted") as count:
        while lines := hosts.run_on_primary(lambda: next(batches, None)):
            examples = list(map(read_example, lines))
            prefixes = prefixes_of(first_line, lines)
            n_best = run.n_best(examples, first_line=first_line, **options, **prefixes)
            for _, outputs in zip(examples, n_best, strict=True):  # one line out for one line in
                as_json = args.format == "jsonl"
                _write_result(_as_json(outputs) if as_json else to_line(outputs[0].text))
            terminal.flush()
            first_line += len(lines)
            count.advance(len(lines))


def chat(args: argparse.Namespace) -> None:
    """Answers each line of stdin, given the conversation so far."""
    from transformer_jax.runs.chat import Chat

    stdin = terminal.binary_stdin()
    conversation = Chat(
        load_run(args, ensembles=True), args.template, **_given_flags(args, DECODE_OPTIONS)
    )
    terminal.print_message(CHAT_COMMANDS)
    for line in _prompted_lines(stdin):
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/quit":
                return
            case "/reset":
                conversation.reset()
            case "/system" if rest.strip():
                conversation.reset(rest.strip())
            case _ if command.startswith("/"):
                terminal.print_message(f"no command: {command}; {CHAT_COMMANDS}")
            case _ if command:
                _answer(conversation, line)


def embed(args: argparse.Namespace) -> None:
    """Writes the vector of each line of stdin as a JSON list."""
    changes: dict[str, Any] = {}
    if args.pooling is not None:
        changes["task.pooling"] = args.pooling
    if args.normalize is not None:
        changes["task.normalize"] = args.normalize == "true"
    run = load_run(args)
    if changes:
        run = run.with_config(changes)
    read_text = _text_reader(args)
    with LineCount("embedded") as count:
        for lines in read_batches(terminal.binary_stdin(), most=_LINES_AT_ONCE):
            for vector in run.embed([read_text(line) for line in lines]):
                _write_result(json.dumps([float(f"{value:.9g}") for value in vector.tolist()]))
            terminal.flush()
            count.advance(len(lines))


def score(args: argparse.Namespace) -> None:
    """Prints log P(target | source) of each pair of two files, one a line."""
    from transformer_jax.data.files.pairs import read_aligned

    pairs = read_aligned(args.source, args.target, once=True)
    run = _load_in_job(args)
    read_source = _example_reader(args, run)
    read_target = _text_reader(args)
    with LineCount("scored", total=len(pairs)) as count:
        for indices in batched(range(len(pairs)), _LINES_AT_ONCE):
            chunk = [pairs[i] for i in indices]
            sources = [read_source(pair["source"]) for pair in chunk]
            targets = [read_target(pair["target"]) for pair in chunk]
            for scores in run.pair_scores(sources, targets):
                as_json = args.format == "jsonl"
                _write_result(to_json(scores._asdict()) if as_json else f"{scores.log_prob:.6f}")
            terminal.flush()
            count.advance(len(chunk))


def plot(args: argparse.Namespace) -> None:
    """Draws runs, one run's attention, trees or errors, or a config; prints the picture's path."""
    from transformer_jax.lab.pictures import picture_format

    subject = next(flag for flag in _DRAW if getattr(args, flag) is not None)
    names = {  # attention and tree are called like their flag
        "config": Path(args.config or "curves").stem,
        "errors": args.errors,
        "workdir": "curves",
    }
    output = Path(args.output or f"{names.get(subject, subject)}.png")
    picture_format(output)  # before a model is loaded in vain
    _DRAW[subject](args, output)
    terminal.write(f"{output}\n")


def _draw_attention(args: argparse.Namespace, output: Path) -> None:
    from transformer_jax.lab import plots
    from transformer_jax.runs.load import load

    run = load(args.workdir, modules=args.modules, base=args.base)
    plots.plot_attention(run.attention(args.attention), output, args.kind, args.layer)


def _draw_tree(args: argparse.Namespace, output: Path) -> None:
    from transformer_jax.lab import plots
    from transformer_jax.runs.load import load

    tree = args.tree
    if args.workdir is not None:  # --tree is a sentence, which the run parses
        (tree,) = load(args.workdir, modules=args.modules).predict([tree])
    plots.plot_tree(tree, output)


def _draw_config(args: argparse.Namespace, output: Path) -> None:
    from transformer_jax.lab import plots
    from transformer_jax.runs.config import resolve_file

    plots.plot_config(resolve_file(args.config, args.overrides, args.modules), output)


def _draw_errors(args: argparse.Namespace, output: Path) -> None:
    from transformer_jax.lab import plots
    from transformer_jax.runs.user_modules import load_modules
    from transformer_jax.runs.workdir import CONFIG, PREDICTIONS, fetch_files

    load_modules(args.modules, args.workdir)
    workdir = fetch_files(args.workdir, (CONFIG, PREDICTIONS))
    plots.plot_errors(workdir, args.errors, args.split or "test", output)


def _draw_runs(args: argparse.Namespace, output: Path) -> None:
    """Draws the curves of runs, or the table of a sweep if --workdir is one."""
    from transformer_jax.lab import plots
    from transformer_jax.lab.pictures import save_figure
    from transformer_jax.lab.sweeps.results import saved_rows
    from transformer_jax.lab.sweeps.tables import draw_table
    from transformer_jax.runs.user_modules import load_modules
    from transformer_jax.runs.workdir import METRICS, fetch_files

    workdirs = args.workdir.split(",")
    for workdir in workdirs:
        load_modules(args.modules, workdir)
    folders = [fetch_files(workdir, (METRICS,)) for workdir in workdirs]
    rows = saved_rows(folders[0]) if len(folders) == 1 else None
    if rows:
        save_figure(draw_table(rows), output)
    else:
        plots.plot_runs(folders, output)


_DRAW: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "attention": _draw_attention,
    "tree": _draw_tree,
    "config": _draw_config,
    "errors": _draw_errors,
    "workdir": _draw_runs,
}
"""Flag of `plot` -> the function that draws its subject. The first flag that is given decides;
--workdir is last, because it also names the run of --attention, --tree and --errors."""


def compare(args: argparse.Namespace) -> None:
    """Prints how runs differ, and writes a page of it."""
    from transformer_jax.lab.evidence.comparison import compare, comparison_page

    metrics = args.metrics.split(",") if args.metrics else ()
    comparison = compare(
        *args.runs, split=args.split, metrics=metrics, loss=args.loss, modules=args.modules
    )
    if args.format == "json":
        _write_json(comparison.as_json())
    else:
        terminal.write(f"{comparison.as_text()}\n")
    if args.to:
        path = Path(args.to).with_suffix(".html")
        _write_page(path, comparison_page(comparison))
        logger.info("wrote %s", path)


def claim(args: argparse.Namespace) -> None:
    """Decides a claim and prints the verdict, or says which verdicts are out of date."""
    from transformer_jax.lab.evidence.claims import decide_claim, load_claim

    if args.check:
        return _check_verdicts(args)
    if len(args.names) != 1:
        raise UserError("claim: name one claim file")
    report = decide_claim(load_claim(args.names[0]), args.workdir, args.overrides, args.modules)
    if args.format == "json":
        _write_json(report.as_json())
    else:
        terminal.write(f"{report.as_text()}\n")


def _check_verdicts(args: argparse.Namespace) -> None:
    """Checks the verdicts given, with claim files among them or shipped; or all recorded ones."""
    from transformer_jax.lab.evidence.claims import check_claim, find_claims
    from transformer_jax.lab.evidence.verdicts import read_verdict, recorded_verdicts

    paths = [Path(name) for name in args.names if name.endswith(".json")]
    claims = find_claims([name for name in args.names if not name.endswith(".json")])
    states = {}
    for path in paths or recorded_verdicts():
        verdict = read_verdict(path)
        name = verdict["name"]
        if name not in claims:
            raise UserError(f"{path}: there is no shipped claim {name!r}; give its file, too")
        state = check_claim(verdict, claims[name](), args.overrides, args.modules)
        states[str(path)] = {"verdict": verdict["verdict"], **state._asdict()}
        if args.format == "text":
            terminal.write(f"{path}: {verdict['verdict']}, {state}\n")
    if args.format == "json":
        _write_json(states)


def benchmark(args: argparse.Namespace) -> None:
    """Prints the speed of a config's training step or search as one JSON object."""
    from transformer_jax.runs.config import resolve_file
    from transformer_jax.runtime.platform import require_device
    from transformer_jax.tools import benchmark

    require_device()
    measures: dict[str, Callable[..., dict[str, Any]]]
    measures = {"train": benchmark.train, "decode": benchmark.decode}
    settings = resolve_file(args.config, args.overrides, args.modules)
    measured = measures[args.what](settings, **_given_flags(args, BENCHMARK_SIZES[args.what]))
    _write_json(measured)


def plan(args: argparse.Namespace) -> None:
    """Prints the cost of a config's step or search on other devices as one JSON object."""
    from transformer_jax.lab.plan import plan as planning
    from transformer_jax.lab.plan.report import plan_as_text, ranking_as_text
    from transformer_jax.runs.config import resolve_file

    if args.search and args.decode:
        raise UserError("--search tries meshes for training; leave --decode out")
    settings = resolve_file(args.config, args.overrides, args.modules)
    target = {"device": args.device, "slices": args.slices, "modules": args.modules}
    if args.search:
        ranking = planning.search_meshes(settings, **target)
        terminal.print_message(ranking_as_text(ranking["meshes"]))
        _write_json(ranking)
        return
    report = planning.plan(settings, decode=args.decode, **target)
    terminal.print_message(plan_as_text(report, args.kernels))
    _write_json(report)
    if not report["memory"]["fits"]:
        raise UserError(planning.does_not_fit_message(report))


def verify(args: argparse.Namespace) -> int:
    """Prints the outcome of each oracle for a config; returns 1 if one differs or was not run."""
    from transformer_jax.lab.verification.verify import verify as run_oracles
    from transformer_jax.runs.config import resolve_file

    settings = resolve_file(args.config, args.overrides, args.modules)
    options = _given_flags(args, ("only", "seconds"))
    report = run_oracles(settings, args.modules, keep=args.overrides, **options)
    if args.format == "json":
        _write_json(report.as_dict())
    else:
        _write_result(report.table())
    return 0 if report.is_proven else 1


def inspect(args: argparse.Namespace) -> None:
    """Writes a page for each line of stdin and an index of the pages; prints their paths."""
    from transformer_jax.buckets.bucket import is_address
    from transformer_jax.lab.analysis.pages.attention_page import index_page

    if is_address(args.to):
        raise UserError(f"--to: pages are written to a folder of this machine, not to {args.to}")
    folder = Path(args.to)
    _require_empty(folder)
    stdin = terminal.binary_stdin()
    run = load_run(args)
    read_text = _text_reader(args)
    folder.mkdir(parents=True, exist_ok=True)
    pages: list[tuple[str, str]] = []  # file name and line
    number = 0
    with LineCount("inspected") as count:
        for lines in read_batches(stdin, most=1):
            number += 1
            count.advance(1)
            text = read_text(lines[0])
            if not text.strip():
                logger.warning("line %d is blank: it has no page", number)
                continue
            name = f"{number:04}-walk.html" if args.walk else f"{number:04}.html"
            _write_page(folder / name, _page(run, text, number, args))
            pages.append((name, text))
    if pages:
        _write_page(folder / _INDEX_PAGE, index_page(pages))


def import_(args: argparse.Namespace) -> None:
    """Makes a run of a published model."""
    from transformer_jax.interop.importing import import_model

    import_model(getattr(args, "from"), args.workdir, args.allow_nonfinite)


def export(args: argparse.Namespace) -> None:
    """Writes a run in the format of another library."""
    from transformer_jax.buckets.copies import folder_to_upload
    from transformer_jax.interop.exporting import export_run
    from transformer_jax.runs.load import load

    run = load(args.workdir, args.checkpoint, args.average, args.modules, base=args.base)
    with folder_to_upload(args.to) as directory:
        export_run(run, directory, args.format, args.quantization)


def configs(args: argparse.Namespace) -> None:
    """Lists the shipped configs: name, task, architecture and summary."""
    from transformer_jax.runs.config import resolve_file
    from transformer_jax.runs.shipped import shipped_files

    rows = []
    for name, path in shipped_files("config").items():
        settings = resolve_file(path, {})
        rows.append((name, settings.task.name, settings.model.architecture, _summary(path)))
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for *cells, text in rows:
        aligned = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        terminal.write("  ".join([*aligned, text]) + "\n")


def fields(args: argparse.Namespace) -> None:
    """Lists the fields of a config whose names match a pattern."""
    from transformer_jax.runs.field_docs import find_fields
    from transformer_jax.runs.user_modules import load_modules

    load_modules(args.modules)
    matches = find_fields(args.pattern)
    if args.format == "json":
        records = [dataclasses.asdict(field) for field in matches]
        terminal.write(json.dumps(records, indent=2, ensure_ascii=False) + "\n")
    else:
        terminal.write("\n\n".join(field.as_text() for field in matches) + "\n")


def completion(args: argparse.Namespace) -> None:
    """Prints the completion script of a shell."""
    from transformer_jax.cli.completion import shell_script

    terminal.write(shell_script(args.shell))


RUN_VERB: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "quickstart": quickstart,
    "train": train,
    "sweep": sweep,
    "table": table,
    "evaluate": evaluate,
    "predict": predict,
    "chat": chat,
    "score": score,
    "embed": embed,
    "plot": plot,
    "compare": compare,
    "claim": claim,
    "benchmark": benchmark,
    "plan": plan,
    "verify": verify,
    "inspect": inspect,
    "import": import_,
    "export": export,
    "configs": configs,
    "fields": fields,
    "completion": completion,
}


def load_run(args: argparse.Namespace, ensembles: bool = False) -> Any:
    """Loads the run that `add_run_flags` names, or with `ensembles` also several runs as one;
    applies --max_length, --patch and options of the search."""
    from transformer_jax.runs.load import load
    from transformer_jax.runtime.platform import require_device

    require_device()
    options = {name: getattr(args, name) for name in ("checkpoint", "average", "modules", "base")}
    run: Any
    if ensembles and _is_ensemble(args):
        from transformer_jax.runs.ensemble_run import load_ensemble

        run = load_ensemble(*args.workdir.split(","), **options)
    else:
        run = load(args.workdir, **options)
    # Not every verb that loads a run has these three flags.
    max_length = getattr(args, "max_length", None)
    search = getattr(args, "search", None)
    patches = getattr(args, "patch", None)
    if max_length:
        run = run.with_config(dict.fromkeys(_LENGTH_FIELDS, max_length))
    if args.overrides:
        # Options of a search are checked against --search, not against the search of the run.
        run = run.with_config(({"decode.search": search} if search else {}) | args.overrides)
    return run.patched(dict(patches)) if patches else run


def _is_ensemble(args: argparse.Namespace) -> bool:
    """Returns True if --workdir names several runs, with commas between. A folder whose own name
    has a comma is one run."""
    return "," in args.workdir and not Path(args.workdir).exists()


def _load_in_job(args: argparse.Namespace) -> Any:
    """Loads a run, after joining the job's other processes if --distributed is given; or an
    ensemble."""
    if args.distributed:
        from transformer_jax.runs.config import load_json
        from transformer_jax.runs.workdir import CONFIG, fetch_files

        if _is_ensemble(args):
            raise UserError("--distributed: an ensemble runs in one process; leave the flag out")
        _join_job(args, lambda: load_json(fetch_files(args.workdir, (CONFIG,)) / CONFIG))
    return load_run(args, ensembles=True)


def _join_job(args: argparse.Namespace, load: Callable[[], Any]) -> Any:
    """Loads the user's modules and then the config.

    In a job of several processes, all of them must have the same modules, config and flags. They
    connect before JAX looks at its devices.
    """
    from transformer_jax.runs.user_modules import load_modules

    if not args.distributed:
        load_modules(args.modules, args.workdir)
        return load()
    from transformer_jax.parallel.job import Job, join_job
    from transformer_jax.runs import provenance

    def prepare() -> tuple[Any, dict[str, str]]:
        modules = load_modules(args.modules, args.workdir)
        settings = load()
        flags = {name: value for name, value in vars(args).items() if name not in _PROCESS_FLAGS}
        files = {name: flags.pop(name) for name in _FILE_FLAGS if name in flags}
        return settings, provenance.job_fingerprint(settings, modules, flags, files)

    job = Job(args.coordinator, args.num_processes, args.process_id)
    return join_job(job, prepare, lambda settings: settings.parallel.heartbeat_seconds)


def _given_flags(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The flags among `names` that were given; the config decides about the others."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _examples_to_score(args: argparse.Namespace) -> dict[str, str]:
    """Arguments of `Run.evaluate` that name a split or two files."""
    if (args.source is None) != (args.target is None):
        raise UserError("--source and --target go together: the file to translate, its references")
    if args.source is None:
        return {} if args.split is None else {"split": args.split}
    if args.split is not None:
        raise UserError(
            "--split names a split of the run's data, --source a file: give one of them"
        )
    return {"source": args.source, "target": args.target}


def _text_reader(args: argparse.Namespace) -> Callable[[str], str]:
    """Function that returns the text on a line: unescaped if --escape is given."""
    return example_reader(escaped=args.escape, reads_objects=False)


def _example_reader(args: argparse.Namespace, run: Any) -> Callable[[str], str]:
    """Like `_text_reader`, for an example of the run's task, which may be a JSON object."""
    return example_reader(escaped=args.escape, reads_objects=hasattr(run.task, "objects"))


def _as_json(outputs: list[Any]) -> str:
    records = [{"text": output.text, "score": output.score} for output in outputs]
    return to_json({"outputs": records})


def _write_result(line: str) -> None:
    """Writes a line of results from process 0."""
    from transformer_jax.parallel import hosts

    if hosts.is_primary():
        terminal.write(f"{line}\n")


def _write_json(record: Mapping[str, Any]) -> None:
    """Writes one object; on a terminal its numbers have a few digits."""
    _write_result(to_json(record, _DIGITS if terminal.is_stdout_terminal() else None))


def _write_table(rows: list[Any]) -> None:
    from transformer_jax.lab.sweeps.tables import as_text

    terminal.write(f"{as_text(rows)}\n")


def _stream(
    run: Any, options: dict[str, Any], stdin: terminal.Stdin, read_example: Callable[[str], str]
) -> None:
    for lines in read_batches(stdin, most=1):
        for piece in run.stream(read_example(lines[0]), **options):
            terminal.write(piece)
            terminal.flush()
        terminal.write("\n")


def _prompted_lines(stdin: terminal.Stdin) -> Iterator[str]:
    """Lines of stdin; prints a prompt before each if a person types them."""
    lines = read_batches(stdin, most=1)
    while True:
        if stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line[0]


def _summary(path: Path) -> str:
    """First line of the docstring of a Python file, which is not run."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _answer(conversation: Any, line: str) -> None:
    try:
        for piece in conversation.ask(line):
            terminal.write(piece)
            terminal.flush()
        terminal.write("\n")
        terminal.flush()
    except UserError as error:
        terminal.print_message(f"error: {error}")


def _require_empty(folder: Path) -> None:
    try:
        if any(folder.iterdir()):
            raise UserError(f"--to: {folder} is not empty; choose a new directory")
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise UserError(f"--to: {folder} is a file; choose a new directory") from error


def _page(run: Any, text: str, number: int, args: argparse.Namespace) -> str:
    from transformer_jax.lab.analysis.pages.document import inspect_command

    command = inspect_command(args.workdir, *_inspect_flags(args))
    make = _walk_page if args.walk else _attention_page
    try:
        return make(run, text, command)
    except UserError as error:
        raise UserError(f"line {number}: {error}") from error


def _inspect_flags(args: argparse.Namespace) -> Iterator[str]:
    """The flags of `inspect` that were given, except --workdir and --to."""
    for name in ("checkpoint", "average", "base", "max_length"):
        value = getattr(args, name)
        if value not in (None, "latest"):
            yield f"--{name}={value}"
    if args.modules:
        yield f"--modules={','.join(args.modules)}"
    yield from (f"--patch={point}={scale!r}" for point, scale in args.patch or ())
    yield from (f"--{name}" for name in ("escape", "walk") if getattr(args, name))


def _walk_page(run: Any, text: str, command: str) -> str:
    from transformer_jax.lab.analysis.walk.walking import walk_page

    return walk_page(run.walk(text), text, command)


def _attention_page(run: Any, text: str, command: str) -> str:
    from transformer_jax.lab.analysis.pages.attention_page import attention_page

    has_beams = hasattr(run.task, "beam_tree") and "beam" in run.settings.decode.searches
    attention = run.attention(text, also=("queries", "keys"))
    beams = run.beam_tree(text).as_json() if has_beams else None
    return attention_page(attention, title=text, beams=beams, command=command)


def _write_page(path: Path, html: str) -> None:
    """Writes a file, completely or not at all, and prints its path."""
    write_atomic(path, html)
    terminal.write(f"{path}\n")
    terminal.flush()
