# SPDX-License-Identifier: Apache-2.0
"""Verbs that compare, draw, plan and check runs, a function each, as in `cli.verbs`."""

import argparse
import dataclasses
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.cli import flags, terminal
from transformer_jax.cli.flags import ANY_FIELD, PROGRAM, Flag, verb
from transformer_jax.cli.terminal import answer_lines, one_line, read_batches
from transformer_jax.cli.verbs import given_flags, load_run, settings_of, write_json, write_result
from transformer_jax.errors import UserError, user_errors
from transformer_jax.logs.records import to_json
from transformer_jax.runtime.files import require_empty, write_atomic

logger = logging.getLogger(__name__)


@verb(
    Flag("--sweep FILE", "the sweep: a file, or the name of a shipped one"),
    Flag("--config FILE", "instead of the sweep's own base config"),
    Flag("--workdir DIR", "directory of the runs and tables"),
    Flag("--rows REGEX", "only rows whose name contains a match", ""),
    Flag("--seeds COUNT", "instead of the sweep's own"),
    Flag("--plan", "print what each row costs, what is finished and what remains, and exit"),
    Flag("--at_once N", "seeds in one program (default: a row's, or 8)"),
    flags.MODULES,
    requires=("sweep", "workdir|plan"),
)
def sweep(args: argparse.Namespace) -> None:
    """Trains the rows of a sweep, several seeds each; prints and saves a table.

    The same command resumes a sweep that stopped. Overrides hold for all rows.
    """
    from transformer_jax.lab.sweeps.definition import load_sweep
    from transformer_jax.lab.sweeps.sweep import run_sweep
    from transformer_jax.lab.sweeps.tables import as_text

    definition = load_sweep(args.sweep, **given_flags(args, ("config", "seeds")))
    selection = {"chosen": args.rows, "modules": args.modules}
    if args.plan:
        from transformer_jax.lab.sweeps.planning import plan_sweep

        costs = plan_sweep(definition, args.workdir, args.overrides, **selection)
        return write_result(costs.as_text())
    rows = run_sweep(definition, args.workdir, args.overrides, args.at_once, **selection)
    write_result(as_text(rows))
    # Rows of a search are sorted, the best first; it has 0 parameters if all diverged.
    if definition.space and rows and rows[0].parameters:
        fields = {**definition.base, **args.overrides, **rows[0].values}
        overrides = [f"--config.{name}={value}" for name, value in fields.items()]
        words = [f"--config={definition.config}", f"--workdir={args.workdir}-best", *overrides]
        words += [f"--modules={','.join(args.modules)}"] if args.modules else []
        terminal.print_message(f"the best, {rows[0].name}:")
        terminal.print_message(f"  {PROGRAM} train {shlex.join(words)}")


@verb(
    Flag("folders DIR...", "workdirs of sweeps, or of `train --seeds`"),
    Flag("--format text|markdown|latex|csv", default="text"),
    Flag("--to DIR", "also write all forms of the table there, and figures as PDF and SVG"),
)
def table(args: argparse.Namespace) -> None:
    """Prints the table of one or several sweeps, or writes it with figures for a paper.

    Merges the finished rows of sweeps: rows of one name and config count once. The first row of
    the first folder is the base of all differences.
    """
    from transformer_jax.lab.sweeps import results, tables

    rows = results.merge_tables(*args.folders)
    formats = {
        "text": tables.as_text_with_differences,
        "markdown": tables.as_markdown,
        "latex": tables.as_latex,
        "csv": tables.as_csv,
    }
    terminal.write(f"{formats[args.format](rows).rstrip()}\n")
    if args.to:
        records: dict[str, dict[str, Any]] = {row.name: {} for row in rows}  # of each seed
        for folder in args.folders:
            for name, of_row in results.row_folders(results.readable_folder(folder)).items():
                if name in records:
                    records[name] |= results.seed_records(of_row)
        tables.publish_tables(rows, records, Path(args.to))
        logger.info("wrote the tables and figures to %s", args.to)


@verb(
    flags.CONFIG,
    Flag(
        "--workdir DIR,DIR...",
        "the runs to draw in one picture (of seeds: their mean, with a band), or one sweep",
        excludes=("config",),
    ),
    Flag(
        "--attention TEXT",
        "draw the attention of one run on an example instead of its curves",
        goes_with="workdir",
        excludes=("errors", "tree"),
    ),
    Flag("--layer I", "of --attention (default: last)", goes_with="attention"),
    Flag(
        "--kind encoder|decoder|cross",
        "of --attention: self-attention of a stack, or cross-attention (default: the last)",
        goes_with="attention",
    ),
    Flag(
        "--tree TEXT",
        "draw a tree in brackets, or with --workdir the tree that a parser's run finds",
        excludes=("config",),
    ),
    Flag(
        "--errors confusion|calibration|worst|class|length|frequency",
        "draw the errors of a classifier or tagger that `evaluate` has scored: its confusion "
        "matrix, calibration, worst errors, or error rates by class, length or word frequency",
        goes_with="workdir",
        excludes=("tree",),
    ),
    Flag("--split NAME", "of --errors (default: test)", goes_with="errors"),
    Flag(
        "--output FILE", "the picture, a .png, .svg or .pdf (default: what is drawn, as curves.png)"
    ),
    dataclasses.replace(flags.BASE, goes_with="attention"),
    flags.MODULES,
    requires=("workdir|config|tree",),
)
def plot(args: argparse.Namespace) -> None:
    """Draws runs, a sweep, a run's attention, errors or trees, or a config's rates and positions.

    Prints the picture's path.
    """
    from transformer_jax.lab import plots
    from transformer_jax.lab.pictures import draw_tree, picture_format, save_figure
    from transformer_jax.lab.sweeps.results import saved_rows
    from transformer_jax.lab.sweeps.tables import draw_table
    from transformer_jax.runs.load import load
    from transformer_jax.runs.user_modules import load_modules
    from transformer_jax.runs.workdir import CONFIG, METRICS, PREDICTIONS, fetch_files

    # The first flag that is given decides: --workdir also names the run of the others.
    flags_by_rank = ("attention", "tree", "config", "errors", "workdir")
    subject = next(flag for flag in flags_by_rank if getattr(args, flag) is not None)
    others = [name for name in args.overrides if not name.startswith("data.")]
    if others and subject != "config":
        raise UserError(f"--config.{others[0]} goes with --config")
    # Pictures of attention and trees are called like their flag.
    names = {"config": Path(args.config or "").stem, "errors": args.errors, "workdir": "curves"}
    output = Path(args.output or f"{names.get(subject, subject)}.png")
    picture_format(output)  # before a model is loaded in vain
    match subject:
        case "attention":
            run = load(args.workdir, modules=args.modules, base=args.base)
            figure = plots.plot_attention(run.attention(args.attention), args.kind, args.layer)
        case "tree":
            tree = args.tree
            if args.workdir is not None:  # a sentence, which the run parses
                (tree,) = load(args.workdir, modules=args.modules).predict([tree])
            figure = draw_tree(tree)
        case "config":
            figure = plots.plot_config(settings_of(args))
        case "errors":
            load_modules(args.modules, args.workdir)
            run_files = fetch_files(args.workdir, (CONFIG, METRICS, PREDICTIONS))
            split = args.split or "test"
            figure = plots.plot_errors(run_files, args.errors, split, args.overrides)
        case "workdir":
            workdirs = args.workdir.split(",")
            for workdir in workdirs:
                load_modules(args.modules, workdir)
            folders = [fetch_files(workdir, (METRICS,)) for workdir in workdirs]
            rows = saved_rows(folders[0]) if len(folders) == 1 else None
            figure = draw_table(rows) if rows else plots.plot_runs(folders)
    save_figure(figure, output)
    terminal.write(f"{output}\n")


@verb(
    Flag(
        "runs RUN...",
        "workdirs, the base first; the folder of `train --seeds` or of a sweep's row is a run of "
        "several seeds",
    ),
    Flag(
        "--split NAME",
        "compare the outputs that `evaluate --split=...` wrote (default: test)",
        "test",
    ),
    Flag("--metrics NAME,NAME...", "validation metrics to test (default: all)"),
    Flag("--loss", "also test the loss per example of the split"),
    Flag("--format text|json", default="text"),
    Flag("--to FILE", "also write a page, FILE.html"),
    flags.MODULES,
    overrides=flags.DATA_OPTION,
)
def compare(args: argparse.Namespace) -> None:
    """Says whether runs differ: over seeds, and over the examples of a test set.

    Compares runs with the first one: what differs in config, data and code, and whether metrics do,
    by tests over seeds (paired t, Welch, permutation, Holm) and over examples (sacreBLEU's paired
    tests, approximate randomization).
    """
    from transformer_jax.lab.evidence.comparison import compare, comparison_page

    metrics = args.metrics.split(",") if args.metrics else ()
    data = {"split": args.split, "overrides": args.overrides}
    comparison = compare(*args.runs, metrics=metrics, loss=args.loss, modules=args.modules, **data)
    _write_report(comparison, args.format)
    if args.to:
        path = Path(args.to).with_suffix(".html")
        _write_page(path, comparison_page(comparison))
        logger.info("wrote %s", path)


@verb(
    Flag("names CLAIM...", "a claim file; with --check verdicts"),
    Flag("--workdir DIR", "of the runs; the same command resumes"),
    Flag("--check", "only say which are fresh"),
    Flag("--format text|json", default="text"),
    flags.MODULES,
    requires=("workdir|check",),
    overrides=ANY_FIELD,
)
def claim(args: argparse.Namespace) -> None:
    """Decides a claim about models by a sequential test over seeds.

    Trains both rows of a claim with more and more seeds until the test decides or the seeds of its
    last look are trained, and writes NAME.verdict.json. --check says without training which
    verdicts are fresh, and what has changed for others (claim, config, step, data, order and so
    on); without names, of all recorded verdicts on shipped claims.
    """
    from transformer_jax.lab.evidence.claims import decide_claim, load_claim

    if args.check:
        return _check_verdicts(args)
    if len(args.names) != 1:
        raise UserError("claim: name one claim file")
    report = decide_claim(load_claim(args.names[0]), args.workdir, args.overrides, args.modules)
    _write_report(report, args.format)


def _write_report(report: Any, form: str) -> None:
    if form == "json":
        write_json(report.as_json())
    else:
        terminal.write(f"{report.as_text()}\n")


def _check_verdicts(args: argparse.Namespace) -> None:
    """Checks the verdicts given, with claim files among them or shipped; or the recorded ones, on
    the claims given or on all."""
    from transformer_jax.lab.evidence.claims import check_claim, find_claims
    from transformer_jax.lab.evidence.verdicts import read_verdict, recorded_verdicts

    paths = [Path(name) for name in args.names if name.endswith(".json")]
    files = [name for name in args.names if not name.endswith(".json")]
    claims = find_claims(files)
    states = {}
    for path in paths or recorded_verdicts([Path(file).stem for file in files]):
        verdict = read_verdict(path)
        name = verdict["name"]
        if name not in claims:
            raise UserError(f"{path}: there is no shipped claim {name!r}; give its file, too")
        state = check_claim(verdict, claims[name](), args.overrides, args.modules)
        states[str(path)] = {"verdict": verdict["verdict"], **state._asdict()}
        if args.format == "text":
            terminal.write(f"{path}: {verdict['verdict']}, {state}\n")
    if args.format == "json":
        write_json(states)


@verb(
    Flag("folder DIR", "the folder of the night, with night.py and proposals"),
    Flag("--next", "only print what is open and what was decided, one JSON object"),
    Flag(
        "--finish",
        "evaluate the winner on fresh seeds and, once, on the test split; ends the night",
        excludes=("next",),
    ),
)
def night(args: argparse.Namespace) -> int:
    """Tests proposals to change a baseline, with one error rate for all; promotes what is better.

    Prints a JSON line for each proposal that is decided, and writes DIR/night.html. The same
    command continues. Exit status 1: the budget is used up.
    """
    from transformer_jax.lab.night import loop, report

    if args.next:
        write_json(report.night_state(args.folder))
        return 0
    if args.finish:
        write_json(loop.finish_night(args.folder))
        report.write_page(args.folder)
        return 0
    for line in loop.decide_proposals(args.folder):
        write_json(line)
        report.write_page(args.folder)
    return int(report.night_state(args.folder)["is_spent"])


_SIZES = (
    Flag("--batch_size N"),
    Flag("--source_length N"),
    Flag("--steps N", "of which the median is taken"),
)


@verb(flags.CONFIG, *_SIZES, Flag("--target_length N"), flags.MODULES, requires=("config",))
def benchmark_train(args: argparse.Namespace) -> None:
    """Times the training step on random tokens, warm, median of many."""
    from transformer_jax.tools import benchmark

    sizes = ("batch_size", "source_length", "target_length", "steps")
    write_json(benchmark.train(settings_of(args), **given_flags(args, sizes)))


@verb(
    flags.CONFIG,
    *_SIZES,
    Flag("--beam_size N"),
    Flag("--output_length N"),
    flags.MODULES,
    requires=("config",),
)
def benchmark_decode(args: argparse.Namespace) -> None:
    """Times the search on random tokens, warm, median of many."""
    from transformer_jax.tools import benchmark

    sizes = ("batch_size", "source_length", "beam_size", "output_length", "steps")
    write_json(benchmark.decode(settings_of(args), **given_flags(args, sizes)))


@verb(
    flags.CONFIG,
    Flag(
        "--device KIND:SIZE",
        "h100:8 (GPUs), h100:32x8 (hosts x GPUs), v5e:4x4 or v5p:4x4x8 (a slice of TPUs)",
    ),
    Flag("--slices N", "slices of TPUs (default: 1)", default=1),
    Flag("--decode", "plan the search instead of the training step"),
    Flag(
        "--search",
        "try meshes, gradient accumulation and remat; rank what fits",
        excludes=("decode", "kernels"),
    ),
    Flag("--kernels N", "also print the N groups of kernels that take longest", 0),
    flags.MODULES,
    requires=("config", "device"),
)
def plan(args: argparse.Namespace) -> None:
    """Compiles a config's step for devices that are not here; prints what it would cost.

    One JSON object goes to stdout, a table to stderr.
    """
    from transformer_jax.lab.plan import plan as planning
    from transformer_jax.lab.plan.report import plan_as_text, ranking_as_text

    settings = settings_of(args)
    target = {"device": args.device, "slices": args.slices, "modules": args.modules}
    if args.search:
        ranking = planning.search_meshes(settings, **target)
        write_json(ranking)
        terminal.print_message(ranking_as_text(ranking["meshes"]))
        return
    report = planning.plan(settings, decode=args.decode, **target)
    if not args.decode:
        report["packing"] = planning.packing_speed(settings)
    # On a terminal the table comes last, without the hundreds of groups before it.
    hidden = {"kernel_groups"} if terminal.is_stdout_terminal() else set()
    write_json({name: value for name, value in report.items() if name not in hidden})
    terminal.print_message(plan_as_text(report, args.kernels))
    if not report["memory"]["fits"]:
        raise UserError(planning.does_not_fit_message(report))


@verb(
    flags.CONFIG,
    flags.MODULES,
    Flag("--only REGEX", "only oracles whose name contains a match", ""),
    Flag("--quick", "a first look: five oracles of the model, and those of the component's kind"),
    Flag("--seconds N", "time limit; what has not ended by then is not run (default: 600)"),
    Flag("--format text|json", "json: one object on stdout", "text"),
    requires=("config",),
)
def verify(args: argparse.Namespace) -> int:
    """Checks a component of yours: packed = padded, cached = full, causality, meshes, ...

    Runs on CPUs, in a shrunk version of the config; a field that an override sets is kept. Exit
    status 1: something differs, or was not run.
    """
    from transformer_jax.lab.verification.verify import verify as run_oracles

    settings = settings_of(args)
    options = given_flags(args, ("only", "quick", "seconds"))
    report = run_oracles(settings, args.modules, keep=args.overrides, **options)
    if args.format == "json":
        write_json(report.as_dict())
    else:
        write_result(report.table())
    return 0 if report.is_proven else 1


@verb(
    flags.RUN[0],
    Flag("--segments N", "how many parts between kept checkpoints to train again", 1),
    Flag("--seed I", "of the draw (default: one that nobody knows before)"),
    flags.MODULES,
    requires=("workdir",),
    overrides=ANY_FIELD,
)
def audit(args: argparse.Namespace) -> int:
    """Checks the digests of a run's records and checkpoints, and trains drawn parts of it again.

    Compares bit for bit on the same kind of processor, with the same libraries. Exit status 1:
    something is not as it was recorded.
    """
    from transformer_jax.lab.audit import audit as audit_run

    draw = {"segments": args.segments, "seed": args.seed}
    report = audit_run(args.workdir, args.modules, args.overrides, **draw)
    write_result(report.as_text())
    return 1 if report.findings else 0


@verb(
    *flags.RUN,
    flags.MAX_LENGTH,
    flags.PATCH,
    Flag("--to DIR", "where pages are written; made if absent"),
    Flag("--walk", "write the model's computation step by step instead of its attention"),
    requires=("workdir", "to"),
)
def inspect(args: argparse.Namespace) -> None:
    """Reads one example a line from stdin, writes a page of what the model does with each.

    DIR is new or empty. A page is one HTML file, named after its line; index.html lists them. Their
    paths are printed.
    """
    from transformer_jax.buckets.bucket import is_address
    from transformer_jax.lab.analysis.attention_page import index_page
    from transformer_jax.lab.analysis.pages import inspect_command

    if is_address(args.to):
        raise UserError(f"--to: pages are written to a folder of this machine, not to {args.to}")
    folder = Path(args.to)
    require_empty(folder, "--to")
    stdin = terminal.binary_stdin()
    run = load_run(args)
    command = inspect_command(args.workdir, *_inspect_flags(args))
    make_page = _walk_page if args.walk else _attention_page
    folder.mkdir(parents=True, exist_ok=True)
    pages: list[tuple[str, str]] = []  # file name and line

    def answer(number: int, lines: list[str]) -> None:
        (text,) = lines
        if not text.strip():
            logger.warning("line %d is blank: it has no page", number)
            return
        name = f"{number:04}-walk.html" if args.walk else f"{number:04}.html"
        with user_errors(f"line {number}", kinds=UserError):
            page = make_page(run, text, command)
        _write_page(folder / name, page)
        pages.append((name, text))

    answer_lines(read_batches(stdin, most=1), answer, "inspected")
    if pages:
        _write_page(folder / "index.html", index_page(pages))


@verb(
    Flag("--tokenizer PATH,...", "workdirs of runs, or files or folders of published tokenizers"),
    Flag(
        "--format text|jsonl", "jsonl: an object with pieces and ids per line and tokenizer", "text"
    ),
    requires=("tokenizer",),
)
def tokenize(args: argparse.Namespace) -> None:
    """Reads a text a line from stdin, and prints its pieces and ids by each tokenizer.

    A table at the end has tokens, unknown ones, characters per token and the vocabulary of each.
    """
    from transformer_jax.lab.analysis.tables import compare_tokens, open_tokenizers

    stdin = terminal.binary_stdin()
    tokenizers: dict[str, Any] = {}
    for path in args.tokenizer.split(","):
        tokenizers |= open_tokenizers(path)
    texts = []
    for (text,) in read_batches(stdin, most=1):
        texts.append(text)
        tokens = compare_tokens(text, tokenizers)
        for name, pieces in tokens.pieces.items():
            if args.format == "jsonl":
                record = {"text": text, "tokenizer": name, "pieces": pieces}
                write_result(to_json(record | {"ids": tokens.ids[name]}))
            else:
                ids = " ".join(map(str, tokens.ids[name]))
                write_result(f"{name}: {' '.join(map(one_line, pieces))}\n{ids}\n")
    if texts and args.format == "text":
        write_result(compare_tokens("".join(texts), tokenizers).table.to_string())


def _inspect_flags(args: argparse.Namespace) -> Iterator[str]:
    """The flags of `inspect` that were given, except --workdir and --to."""
    for name in ("checkpoint", "average", "base", "max_length"):
        value = getattr(args, name)
        if value not in (None, "latest"):
            yield f"--{name}={value}"
    if args.modules:
        yield f"--modules={','.join(args.modules)}"
    yield from (f"--patch={point}={scale!r}" for point, scale in args.patch or ())
    if args.walk:
        yield "--walk"


def _walk_page(run: Any, text: str, command: str) -> str:
    from transformer_jax.lab.analysis.walk import walk_page

    return walk_page(run.walk(text), text, command)


def _attention_page(run: Any, text: str, command: str) -> str:
    from transformer_jax.lab.analysis.attention_page import attention_page

    has_beams = hasattr(run.task, "beam_tree") and "beam" in run.settings.decode.searches
    attention = run.attention(text, also=("queries", "keys"))
    beams = run.beam_tree(text).as_json() if has_beams else None
    return attention_page(attention, title=text, beams=beams, command=command)


def _write_page(path: Path, html: str) -> None:
    """Writes a file, completely or not at all, and prints its path."""
    write_atomic(path, html)
    terminal.write(f"{path}\n")
