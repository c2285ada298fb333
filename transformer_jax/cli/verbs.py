# SPDX-License-Identifier: Apache-2.0
"""Verbs that train and use runs, a function each, whose docstring is the verb's help.

Functions import what they need when they are called, so that `--help` answers without jax.
"""

import argparse
import ast
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from itertools import batched, chain
from pathlib import Path
from typing import Any

from transformer_jax.cli import flags, terminal
from transformer_jax.cli.flags import ANY_FIELD, DECODE_OPTIONS, PROGRAM, Flag, verb
from transformer_jax.cli.terminal import answer_lines, one_line, read_batches
from transformer_jax.errors import UserError
from transformer_jax.logs.records import to_json

_LINES_AT_ONCE = 512  # of stdin, to be predicted, embedded or scored together
_DIGITS = 4  # of numbers on a terminal
_LENGTH_FIELDS = ("data.max_length", "data.max_source_length", "data.max_target_length")
_PROCESS_FLAGS = (
    *("config", "overrides", "workdir", "modules", "base"),
    *("coordinator", "num_processes", "process_id", "traceback"),
)
"""Flags that may differ between the processes of a job, or that are compared in another way."""
_FILE_FLAGS = ("source", "target", "prefixes", "choices")
"""Flags whose files are compared between the processes of a job."""
_CHAT_COMMANDS = (
    "/reset starts over, /system TEXT starts over with an instruction how to answer, /quit ends"
)


@verb(
    Flag("--workdir DIR", "the run's directory (default: runs/quickstart)", "runs/quickstart"),
    overrides=ANY_FIELD,
)
def quickstart(args: argparse.Namespace) -> None:
    """Trains, translates and scores a small built-in task, in minutes on two cores.

    Prints scores, translations and the paths of pages to look at. If it is interrupted, the same
    command continues.
    """
    from transformer_jax.tools.quickstart import quickstart as report

    for line in report(args.workdir, args.overrides):
        write_result(line)


@verb(
    flags.CONFIG,
    Flag("--workdir DIR", "the run's directory; made if absent"),
    Flag("--dry_run", "print batch shapes, parameters and the memory of a step, and exit"),
    Flag(
        "--seeds COUNT",
        "train this many seeds together, counted up from the config's; each has a workdir in DIR",
        goes_with="config",
        excludes=("dry_run", "distributed"),
    ),
    flags.MODULES,
    *flags.PROCESSES,
    requires=("config|workdir", "workdir|dry_run"),
)
def train(args: argparse.Namespace) -> None:
    """Trains a config in a workdir, or resumes from its last checkpoint.

    Without --config, the run in DIR continues with its own.
    """
    settings = _join_job(args, lambda: settings_of(args))
    if args.dry_run:
        from transformer_jax.tools.benchmark import describe

        write_result(describe(settings))
    elif args.seeds:
        from transformer_jax.lab.sweeps.sweep import run_seeds
        from transformer_jax.lab.sweeps.tables import as_text

        write_result(as_text(run_seeds(settings, args.workdir, args.seeds, args.modules)))
    else:
        from transformer_jax.runs.train import train as train_run

        _print_next(train_run(settings, args.workdir, args.modules), args.workdir)


def settings_of(args: argparse.Namespace) -> Any:
    """The settings of --config, or of the run in --workdir, which is continued."""
    from transformer_jax.runs.config import resolve_file
    from transformer_jax.runs.workdir import CONFIG, fetch_files

    path = args.config
    if path is None:
        path = fetch_files(args.workdir, (CONFIG,)) / CONFIG
        if not path.exists():
            raise UserError(
                f"{args.workdir} holds no run to continue; for a new one give its config, such as "
                "--config=quickstart"
            )
    return resolve_file(path, args.overrides, args.modules)


def _print_next(run: Any, workdir: str) -> None:
    """Prints the commands that use a run."""
    from transformer_jax.parallel import hosts

    if not hosts.is_primary():
        return
    flag = f"--workdir={shlex.quote(workdir)}"
    use = "chat" if hasattr(run.task, "reply") else "predict"
    terminal.print_message("next:")
    terminal.print_message(f"  {PROGRAM} evaluate {flag}")
    terminal.print_message(f"  {PROGRAM} {use} {flag}  # reads lines that you type")


@verb(
    *flags.RUNS,
    flags.MAX_LENGTH,
    flags.PATCH,
    Flag(
        "--split NAME",
        "the split of the run's data to score (default: test; valid if there is none)",
        excludes=("source", "target"),
    ),
    Flag("--source FILE", "score this file instead of a split", goes_with="target"),
    Flag("--target FILE", "the references of --source", goes_with="source"),
    Flag(
        "--choices FILE",
        "score a language model on this file of multiple-choice questions",
        excludes=("split", "source", "target", "command", *DECODE_OPTIONS),
    ),
    Flag(
        "--command PROGRAM",
        "also score the outputs by this program: JSON lines in, one object of numbers out",
    ),
    *flags.DECODE,
    *flags.PROCESSES,
    requires=("workdir",),
    overrides=f"{flags.SEARCH_OPTION}|{flags.DATA_OPTION}",
)
def evaluate(args: argparse.Namespace) -> None:
    """Scores a run; prints one JSON object.

    Files are one example a line.
    """
    run = _load_in_job(args)
    if args.choices is None:
        names = ("split", "source", "target", "command", *DECODE_OPTIONS)
        metrics = run.evaluate(**given_flags(args, names))
    else:
        from transformer_jax.runs.evaluate import evaluate_choices

        metrics = evaluate_choices(run.task, run.params, args.choices, run.settings.decode)
        metrics |= run.identity
    write_json(metrics)


@verb(
    *flags.RUNS,
    flags.MAX_LENGTH,
    flags.PATCH,
    Flag("--format text|jsonl", default="text"),
    Flag("--num_outputs N", "outputs an example, best first; more than one needs --format=jsonl"),
    Flag("--prefixes FILE", "how each output starts, one line an example"),
    Flag(
        "--stream",
        "write an output piece by piece as it is generated, one example at a time",
        excludes=("num_outputs", "format", "prefixes", "batch_size", "distributed"),
    ),
    *flags.DECODE,
    *flags.PROCESSES,
    requires=("workdir",),
)
def predict(args: argparse.Namespace) -> None:
    r"""Reads one example a line from stdin, writes one line for each.

    Lines are read unchanged. In an output, a line feed is written as \n and a carriage return as
    \r; --format=jsonl is exact.
    """
    as_json = args.format == "jsonl"
    if (args.num_outputs or 1) > 1 and not as_json:
        raise UserError("--num_outputs above 1 needs --format=jsonl: text has one line an example")
    stdin = terminal.binary_stdin()  # a closed stdin is reported before a model is loaded
    options = given_flags(args, (*DECODE_OPTIONS, "num_outputs"))
    run = _load_in_job(args)
    if args.stream:
        for (line,) in read_batches(stdin, most=1):
            _write_pieces(run.stream(line, **options))
        return
    from transformer_jax.data.files.lines import TextLines
    from transformer_jax.parallel import hosts

    prefixes = None if args.prefixes is None else TextLines(args.prefixes, once=True)
    # In a job, process 0 reads the lines for all.
    read = read_batches(stdin, most=_LINES_AT_ONCE)
    batches = iter(lambda: hosts.run_on_primary(lambda: next(read, None)), None)

    def answer(first_line: int, lines: list[str]) -> None:
        if prefixes is not None:
            end = first_line - 1 + len(lines)
            if end > len(prefixes):
                length = f"has {len(prefixes)} lines, fewer than the input"
                raise UserError(f"--prefixes: {args.prefixes} {length}")
            options["prefixes"] = [prefixes[i] for i in range(first_line - 1, end)]
        n_best = run.n_best(lines, first_line=first_line, **options)
        for _, outputs in zip(lines, n_best, strict=True):  # one line out for one line in
            members = [{"text": output.text, "score": output.score} for output in outputs]
            text = to_json({"outputs": members}) if as_json else one_line(outputs[0].text)
            write_result(text)

    num_lines = answer_lines(batches, answer, "predicted")
    if prefixes is not None and len(prefixes) > num_lines:
        # How many lines stdin has is known at its end only.
        length = f"has {len(prefixes)} lines, more than the {num_lines} of the input"
        raise UserError(f"--prefixes: {args.prefixes} {length}; they may belong to other lines")


@verb(
    *flags.RUNS,
    Flag(
        "--template NAME",
        "format of the conversation, as task.template: chatml, llama3, ..., or model, that of the "
        "imported model (default: the run's; of a language model, its tokenizer's)",
    ),
    flags.MAX_LENGTH,
    *flags.DECODE,
    requires=("workdir",),
)
def chat(args: argparse.Namespace) -> None:
    """Talks to a run that follows instructions.

    One question per line; /reset starts over, /system TEXT starts over with an instruction how to
    answer, /quit ends.
    """
    from transformer_jax.runs.run import Chat

    stdin = terminal.binary_stdin()
    run = load_run(args, ensembles=True)
    conversation = Chat(run, args.template, **given_flags(args, DECODE_OPTIONS))
    terminal.print_message(_CHAT_COMMANDS)
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
                terminal.print_message(f"no command: {command}; {_CHAT_COMMANDS}")
            case _ if command:
                try:
                    _write_pieces(conversation.ask(line))
                except UserError as error:
                    terminal.print_message(f"error: {error}")


def _prompted_lines(stdin: BufferedIOBase) -> Iterator[str]:
    """Lines of stdin; prints a prompt before each if a person types them."""
    lines = read_batches(stdin, most=1)
    while True:
        if stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line[0]


def _write_pieces(pieces: Iterable[str]) -> None:
    """Writes an output while it is generated, and ends its line."""
    for piece in chain(pieces, ["\n"]):
        terminal.write(piece)


@verb(
    *flags.RUNS,
    flags.PATCH,
    Flag("--source FILE"),
    Flag("--target FILE"),
    Flag(
        "--format text|jsonl",
        "jsonl: objects that also say whether greedy search generates the target",
        "text",
    ),
    *flags.PROCESSES,
    requires=("workdir", "source", "target"),
)
def score(args: argparse.Namespace) -> None:
    """Prints log P(target | source) of each pair of two files, in nats, one a line.

    Files are one example a line.
    """
    from transformer_jax.data.files.pairs import read_aligned

    as_json = args.format == "jsonl"
    pairs = read_aligned(args.source, args.target, once=True)
    run = _load_in_job(args)

    def answer(first_line: int, batch: Sequence[Mapping[str, str]]) -> None:
        sources = [pair["source"] for pair in batch]
        targets = [pair["target"] for pair in batch]
        for scores in run.pair_scores(sources, targets, first_line=first_line):
            write_result(to_json(scores._asdict()) if as_json else f"{scores.log_prob:.6f}")

    answer_lines(batched(pairs, _LINES_AT_ONCE), answer, "scored", len(pairs))


@verb(
    *flags.RUN,
    flags.MAX_LENGTH,
    Flag(
        "--pooling mean|cls|max",
        "how vectors of tokens become one (default: task.pooling, as imported)",
    ),
    Flag(
        "--normalize true|false", "scale vectors to length 1 (default: task.normalize, as imported)"
    ),
    requires=("workdir",),
)
def embed(args: argparse.Namespace) -> None:
    """Reads one text a line from stdin, writes its vector as a JSON list, one a line."""
    stdin = terminal.binary_stdin()
    flags_given = given_flags(args, ("pooling", "normalize"))
    run = load_run(args)
    if flags_given:
        run = run.with_config({f"task.{name}": value for name, value in flags_given.items()})

    def answer(first_line: int, lines: list[str]) -> None:
        for vector in run.embed(lines, first_line=first_line):
            write_result(json.dumps([float(f"{value:.9g}") for value in vector.tolist()]))

    answer_lines(read_batches(stdin, most=_LINES_AT_ONCE), answer, "embedded")


@verb(
    Flag(
        "--from DIR|hf:OWNER/NAME",
        "a directory, or a repository of the Hugging Face hub (hf:OWNER/NAME@REVISION)",
    ),
    Flag("--workdir DIR", "the run's directory; new or empty"),
    Flag("--allow_nonfinite", "import weights with NaN or infinity, which are refused otherwise"),
    requires=("from", "workdir"),
)
def import_(args: argparse.Namespace) -> None:
    """Makes a run of a published model, as transformers stores them.

    Reads config.json, safetensors and the tokenizer; nothing of it is executed.
    """
    from transformer_jax.interop.importing import import_model

    import_model(getattr(args, "from"), args.workdir, args.allow_nonfinite)


@verb(
    *flags.RUN,
    Flag("--to DIR", "the directory to write; made if absent"),
    Flag(
        "--format hf|ctranslate2",
        "hf: as transformers' save_pretrained; ctranslate2: needs its library (extra export)",
    ),
    Flag(
        "--quantization float32|int8",
        "of the matrices, for --format=ctranslate2 (default: float32)",
    ),
    requires=("workdir", "to", "format"),
)
def export(args: argparse.Namespace) -> None:
    """Writes a run for transformers or CTranslate2.

    DIR is new or empty.
    """
    from transformer_jax.buckets.copies import folder_to_upload
    from transformer_jax.interop.exporting import export_run

    run = load_run(args)
    with folder_to_upload(args.to) as directory:
        export_run(run, directory, args.format, args.quantization)


@verb(Flag("name [NAME]", "prints this whole config: each field with the file that sets it", ""))
def configs(args: argparse.Namespace) -> None:
    """Lists the configs that come with the project: name, task, architecture and summary.

    With NAME, a shipped config or a file: all fields, each with the file that sets it.
    """
    from transformer_jax.runs.config import flatten, resolve_file, setting_files, to_config
    from transformer_jax.runs.field_docs import as_override
    from transformer_jax.runs.shipped import shipped_files

    if args.name:
        files = setting_files(args.name)
        for field, value in flatten(to_config(resolve_file(args.name, {})).to_dict()).items():
            _, file = files.get(field, (None, "default"))
            terminal.write(f"{f'{field} = {as_override(value)}':50}  {file}\n")
        return
    for name, path in shipped_files("config").items():
        settings = resolve_file(path, {})
        # The file is read, not run.
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary = docstring.partition("\n")[0]
        columns = f"{name:31}  {settings.task.name:18}  {settings.model.architecture:15}"
        terminal.write(f"{columns}  {summary}\n")


@verb(
    Flag(
        "pattern [PATTERN]",
        "part of the name SECTION.FIELD, or a glob such as 'data.*_text' (default: all)",
        "",
    ),
    Flag("--format text|json", "json: one list of objects", "text"),
    flags.MODULES,
)
def fields(args: argparse.Namespace) -> None:
    """Lists the fields of a config: type, default, choices and meaning."""
    from transformer_jax.runs.field_docs import find_fields
    from transformer_jax.runs.user_modules import load_modules

    load_modules(args.modules)
    matches = find_fields(args.pattern)
    if args.format == "json":
        records = [dataclasses.asdict(field) for field in matches]
        terminal.write(json.dumps(records, indent=2, ensure_ascii=False) + "\n")
    else:
        terminal.write("\n\n".join(field.as_text() for field in matches) + "\n")


@verb(Flag("shell bash|zsh|fish"))
def completion(args: argparse.Namespace) -> None:
    """Prints the script with which a shell completes command lines.

    bash: eval "$(transformer_jax completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after
    compinit; fish: transformer_jax completion fish >
    ~/.config/fish/completions/transformer_jax.fish
    """
    import argcomplete

    terminal.write(argcomplete.shellcode(["transformer_jax"], shell=args.shell))


def load_run(args: argparse.Namespace, ensembles: bool = False) -> Any:
    """Loads the run that --workdir and `RUN` name, or with `ensembles` also several runs as one;
    applies --max_length, --patch and options of the search."""
    from transformer_jax.runs.load import load

    options = {name: getattr(args, name) for name in ("checkpoint", "average", "modules", "base")}
    run: Any
    if ensembles and _is_ensemble(args.workdir):
        from transformer_jax.runs.load import load_ensemble

        run = load_ensemble(*args.workdir.split(","), **options)
    else:
        run = load(args.workdir, **options)
    # Not every verb that loads a run has these two flags.
    max_length = getattr(args, "max_length", None)
    patches = getattr(args, "patch", None)
    if max_length:
        run = run.with_config(dict.fromkeys(_LENGTH_FIELDS, max_length))
    if args.overrides:
        run = run.with_config(_overrides(args))
    return run.patched(dict(patches)) if patches else run


def _overrides(args: argparse.Namespace) -> dict[str, str]:
    """The overrides of a run's config. Options of a search are checked against --search, not
    against the search of the run."""
    search = getattr(args, "search", None)
    chosen = {"decode.search": search} if search and args.overrides else {}
    return chosen | args.overrides


def _is_ensemble(workdir: str) -> bool:
    """Returns True if there are commas between several runs; a folder may have one in its name."""
    return "," in workdir and not Path(workdir).exists()


def _load_in_job(args: argparse.Namespace) -> Any:
    """Loads a run or an ensemble, after joining the job's other processes with --distributed."""
    if args.distributed:
        from transformer_jax.runs.config import load_json
        from transformer_jax.runs.workdir import CONFIG, fetch_files

        if _is_ensemble(args.workdir):
            raise UserError("--distributed: an ensemble runs in one process; leave the flag out")

        def load_settings() -> Any:
            config = fetch_files(args.workdir, (CONFIG,)) / CONFIG
            return load_json(config, _overrides(args))

        _join_job(args, load_settings)
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


def given_flags(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The flags among `names` that were given; the config decides about the others."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def write_result(line: str) -> None:
    """Writes a line of results from process 0."""
    from transformer_jax.parallel import hosts

    if hosts.is_primary():
        terminal.write(f"{line}\n")


def write_json(record: Mapping[str, Any]) -> None:
    """Writes one object; on a terminal its numbers have a few digits."""
    write_result(to_json(record, _DIGITS if terminal.is_stdout_terminal() else None))
