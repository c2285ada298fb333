"""What each verb does. jax is imported here, inside the functions, and by nothing before them."""

import argparse
import sys
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from itertools import batched
from pathlib import Path
from typing import Any

from transformer_jax.cli import inspecting, terminal
from transformer_jax.cli.arguments import (
    BENCHMARK_SIZES,
    DECODE_OPTIONS,
    OVERRIDE,
    Verbs,
    add_config,
    add_decode_options,
    add_max_length,
    add_modules,
    add_run,
    load_run,
    positive,
)
from transformer_jax.cli.lines import (
    LineCount,
    escape,
    example_of,
    open_prefixes,
    read_batches,
    unescape,
)
from transformer_jax.errors import UserError
from transformer_jax.logs.records import to_json

LINES_AT_ONCE = 512
OWN_FLAGS = (
    "config",
    "overrides",
    "workdir",
    "modules",
    "base",
    "coordinator",
    "num_processes",
    "process_id",
)
"""Flags that say where things are, or what is stated in another way."""
FILE_FLAGS = ("source", "target", "prefixes", "choices")


def train(args: argparse.Namespace) -> None:
    """Trains a config in a workdir, or prints what that would hold."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.runtime.platform import require_device

    config = _in_job(args, lambda: load_config(args.config, args.overrides, args.modules))
    require_device()
    if args.dry_run:
        from transformer_jax.tools.dry_run import describe

        _print_once(describe(config))
    elif args.seeds:
        from transformer_jax.sweeps.sweep import run_seeds

        _print_table(run_seeds(config, args.workdir, args.seeds, args.modules))
    else:
        from transformer_jax.runs.train import train as train_run

        train_run(config, args.workdir, args.modules)


def sweep(args: argparse.Namespace) -> None:
    """Trains what a sweep asks for and is not there yet; prints the table."""
    from transformer_jax.runtime.platform import require_device
    from transformer_jax.sweeps.files import load_sweep
    from transformer_jax.sweeps.sweep import run_sweep

    require_device()
    asked = load_sweep(args.sweep, **_given(args, ("config", "seeds")))
    rows = run_sweep(
        asked, args.workdir, args.overrides, args.at_once, chosen=args.rows, modules=args.modules
    )
    _print_table(rows)


def _print_table(rows: list[Any]) -> None:
    from transformer_jax.sweeps.tables import as_text

    terminal.write(f"{as_text(rows)}\n")


def evaluate(args: argparse.Namespace) -> None:
    """Prints the metrics of a split or of two files as one JSON object."""
    examples = _examples_to_score(args)
    run = _load(args)
    if args.choices is None:
        options = _given(args, ("command", *DECODE_OPTIONS))
        metrics = run.evaluate(**examples, **options)
    else:
        from transformer_jax.runs.evaluate import evaluate_choices

        metrics = evaluate_choices(run.task, run.params, args.choices, run.settings.decode)
        metrics["step"] = run.step
    _print_once(to_json(metrics))


def predict(args: argparse.Namespace) -> None:
    """Writes one line for each line of stdin, which the first process of a job reads for all."""
    from transformer_jax.parallel import hosts

    stdin, run = terminal.read_stdin(), _load(args)
    if args.stream:
        return _stream(run, _decode_options(args), stdin)
    options = _given(args, (*DECODE_OPTIONS, "num_outputs"))
    write_line = {"text": _text_line, "jsonl": _json_line}[args.format]
    prefixes, objects = open_prefixes(args.prefixes), _reads_objects(run)
    number, batches = 1, read_batches(stdin, most=LINES_AT_ONCE)
    with LineCount("predicted") as count:
        while lines := hosts.from_primary(lambda: next(batches, None)):
            examples = [example_of(line, objects) for line in lines]
            n_best = run.n_best(examples, first_line=number, **options, **prefixes(number, lines))
            for _, outputs in zip(examples, n_best, strict=True):
                _print_once(write_line(outputs))
            terminal.flush()
            number += len(lines)
            count.advance(len(lines))


def _reads_objects(run: Any) -> bool:
    from transformer_jax.tasks.interface import SupportsJsonObjects

    return isinstance(run.task, SupportsJsonObjects)


def _stream(run: Any, options: dict[str, Any], stdin: BufferedIOBase) -> None:
    for lines in read_batches(stdin, most=1):
        for piece in run.stream(example_of(lines[0], _reads_objects(run)), **options):
            terminal.write(piece)
            terminal.flush()
        terminal.write("\n")


def score(args: argparse.Namespace) -> None:
    """Prints log P(target | source) of each pair of two files, one a line."""
    from transformer_jax.data.files.pairs import read_aligned

    pairs, run = read_aligned(args.source, args.target, once=True), _load(args)
    with LineCount("scored", total=len(pairs)) as count:
        for places in batched(range(len(pairs)), LINES_AT_ONCE):
            chunk = [pairs[i] for i in places]
            sources = [example_of(str(pair["source"]), _reads_objects(run)) for pair in chunk]
            targets = [unescape(str(pair["target"])) for pair in chunk]
            for found in run.pair_scores(sources, targets):
                as_json = args.format == "jsonl"
                _print_once(to_json(found._asdict()) if as_json else f"{found.log_prob:.6f}")
            terminal.flush()
            count.advance(len(chunk))


def plot(args: argparse.Namespace) -> None:
    """Draws runs, the attention of one, or a config; prints the picture's path."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.runs.user_modules import load_modules
    from transformer_jax.runs.workdir import METRICS, with_files
    from transformer_jax.tools.plots import plot_config, plot_runs

    if args.attention is not None:
        output = inspecting.draw_attention(args)
    elif args.workdir is None:
        output = Path(args.output or f"{Path(args.config).stem}.png")
        plot_config(load_config(args.config, args.overrides, args.modules), output)
    else:
        output = Path(args.output or "curves.png")
        workdirs = args.workdir.split(",")
        for workdir in workdirs:
            load_modules(args.modules, workdir)
        plot_runs([with_files(workdir, (METRICS,)) for workdir in workdirs], output)
    terminal.write(f"{output}\n")


def benchmark(args: argparse.Namespace) -> None:
    """Prints how fast a config's step or search is as one JSON object."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.runtime.platform import require_device
    from transformer_jax.tools import benchmark

    require_device()
    measures: dict[str, Callable[..., dict[str, Any]]]
    measures = {"train": benchmark.train, "decode": benchmark.decode}
    config = load_config(args.config, args.overrides, args.modules)
    measured = measures[args.what](config, **_given(args, BENCHMARK_SIZES[args.what]))
    terminal.write(f"{to_json(measured)}\n")


def _load(args: argparse.Namespace) -> Any:
    if args.distributed:
        from transformer_jax.runs.config import load_json
        from transformer_jax.runs.workdir import CONFIG, with_files

        _in_job(args, lambda: load_json(with_files(args.workdir, (CONFIG,)) / CONFIG))
    return load_run(args)


def _in_job(args: argparse.Namespace, load: Callable[[], Any]) -> Any:
    """The config that `load` reads, the user's modules before it; in a job of many processes, once
    all of them have the same and are connected, before JAX looks at its devices."""
    from transformer_jax.runs.user_modules import load_modules

    if not args.distributed:
        load_modules(args.modules, args.workdir)
        return load()
    from transformer_jax.parallel.job import Job, join
    from transformer_jax.runs import provenance

    def prepare() -> tuple[Any, dict[str, str]]:
        modules, config = load_modules(args.modules, args.workdir), load()
        flags = {name: value for name, value in vars(args).items() if name not in OWN_FLAGS}
        files = {name: flags.pop(name) for name in FILE_FLAGS if name in flags}
        return config, provenance.job_fingerprint(config, modules, flags, files)

    job = Job(args.coordinator, args.num_processes, args.process_id)
    return join(job, prepare, lambda config: config.parallel.heartbeat_seconds)


def _print_once(line: str) -> None:
    """A line of results, from the first process alone."""
    from transformer_jax.parallel import hosts

    if hosts.is_primary():
        terminal.write(f"{line}\n")


def _examples_to_score(args: argparse.Namespace) -> dict[str, str]:
    if (args.source is None) != (args.target is None):
        raise UserError("--source and --target go together: the file to translate, its references")
    if args.source is None:
        return {"split": args.split or "test"}
    if args.split is not None:
        raise UserError(
            "--split names a split of the run's data, --source a file: give one of them"
        )
    return {"source": args.source, "target": args.target}


def _decode_options(args: argparse.Namespace) -> dict[str, Any]:
    return _given(args, tuple(DECODE_OPTIONS))


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The flags among `names` that were given; the config decides about the others."""
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _text_line(outputs: list[Any]) -> str:
    return escape(outputs[0].text)


def _json_line(outputs: list[Any]) -> str:
    return to_json({"outputs": [{"text": one.text, "score": one.score} for one in outputs]})


# FOLDED cli.chatting: `chat`: a conversation in the terminal.


_HELP = "/reset begins anew, /system TEXT too and says how to answer, /quit ends"


def add_chat(verbs: Verbs) -> None:
    """The verb and its flags."""
    chat = verbs.add_parser(
        "chat",
        help="talk to a run that follows instructions",
        epilog=f"A question a line; {_HELP}.",
    )
    add_run(chat)
    add_max_length(chat)
    add_decode_options(chat)


def chat(args: argparse.Namespace) -> None:
    """Answers each line of stdin behind all that was said before."""
    from transformer_jax.runs.chat import Chat

    stdin = terminal.read_stdin()
    given = {name: getattr(args, name) for name in DECODE_OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    talk = Chat(load_run(args), **options)
    terminal.tell(_HELP)
    for line in _prompted(stdin):
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/quit":
                return
            case "/reset":
                talk.reset()
            case "/system" if rest.strip():
                talk.reset(rest.strip())
            case _ if command.startswith("/"):
                terminal.tell(f"no command: {command}; {_HELP}")
            case _ if command:
                _answer(talk, line)


def _prompted(stdin: BufferedIOBase) -> Iterator[str]:
    """The lines, each asked for by a mark where a person types them."""
    lines = read_batches(stdin, most=1)
    while True:
        if stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line[0]


def _answer(talk: Any, line: str) -> None:
    try:
        for piece in talk.ask(line):
            terminal.write(piece)
            terminal.flush()
        terminal.write("\n")
        terminal.flush()
    except UserError as error:
        terminal.tell(f"error: {error}")


# FOLDED cli.exchange: The verbs `import` and `export`: their flags, and what they do.


def add_import(verbs: Verbs) -> None:
    """Declares the verb."""
    importing = verbs.add_parser(
        "import",
        help="make a run of a published model, as transformers stores them",
        epilog="Reads config.json, safetensors and the tokenizer; nothing of it is executed.",
    )
    importing.add_argument(
        "--from",
        metavar="DIR|hf:OWNER/NAME",
        help="a directory, or a repository of the Hugging Face hub (hf:OWNER/NAME@REVISION)",
    )
    importing.add_argument("--workdir", metavar="DIR", help="the run's directory; new or empty")


def add_export(verbs: Verbs) -> None:
    """Declares the verb."""
    export = verbs.add_parser(
        "export", help="write a run for transformers or CTranslate2", epilog="DIR is new or empty."
    )
    add_run(export)
    export.add_argument("--to", metavar="DIR", help="the directory to write; made if absent")
    export.add_argument(
        "--format",
        choices=("hf", "ctranslate2"),
        help="hf: as transformers' save_pretrained; ctranslate2 asks for the extra [export]",
    )
    export.add_argument(
        "--quantization",
        choices=("float32", "int8"),
        help="of the matrices, for --format=ctranslate2 (default: float32)",
    )


def import_published(args: argparse.Namespace) -> None:
    """Makes a run of a published model."""
    from transformer_jax.interop.importing import import_model

    import_model(getattr(args, "from"), args.workdir)


def export(args: argparse.Namespace) -> None:
    """Writes a run for other programs."""
    from transformer_jax.buckets.copies import outgoing
    from transformer_jax.interop.exporting import export_run
    from transformer_jax.runs.load import load

    run = load(args.workdir, args.checkpoint, args.average, args.modules, base=args.base)
    with outgoing(args.to) as directory:
        export_run(run, directory, args.format, args.quantization)


# FOLDED cli.plans: The verb `plan`: its flags, and what it does.


def add_plan(verbs: Verbs) -> None:
    """Declares the verb."""
    plan = verbs.add_parser(
        "plan",
        help="compile a config's step for devices that are not here; prints what it would cost",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE. One JSON "
        "object goes to stdout, a table to stderr.",
    )
    add_config(plan)
    plan.add_argument(
        "--device",
        metavar="KIND:SIZE",
        help="h100:8 (GPUs), h100:32x8 (hosts x GPUs), v5e:4x4 or v5p:4x4x8 (a slice of TPUs)",
    )
    plan.add_argument(
        "--slices", type=positive, default=1, metavar="N", help="slices of TPUs (default: 1)"
    )
    plan.add_argument(
        "--decode", action="store_true", help="plan the search instead of the training step"
    )
    compared = plan.add_mutually_exclusive_group()
    compared.add_argument(
        "--search",
        action="store_true",
        help="try meshes, gradient accumulation and remat; rank what fits",
    )
    compared.add_argument("--compare", metavar="FILE", help="another config, beside the first")
    add_modules(plan)


def plan(args: argparse.Namespace) -> None:
    """Prints what a config's step or search would cost on other devices as one JSON object."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.tools.plan import plan as planning
    from transformer_jax.tools.plan import report

    if args.search and args.decode:
        raise UserError("--search tries meshes for training; leave --decode out")
    paths = [args.config, args.compare] if args.compare else [args.config]
    configs = [load_config(path, args.overrides, args.modules) for path in paths]
    aim = {"device": args.device, "slices": args.slices, "modules": args.modules}
    if args.search:
        found = planning.search(configs[0], **aim)
        terminal.tell(report.ranking(found["meshes"]))
    else:
        reports = [planning.plan(config, decode=args.decode, **aim) for config in configs]
        terminal.tell(report.as_text(reports))
        found = dict(zip(paths, reports, strict=True)) if args.compare else reports[0]
    terminal.write(f"{to_json(found)}\n")
    for planned in [] if args.search else reports:
        if not planned["memory"]["fits"]:
            raise UserError(planning.does_not_fit(planned))
