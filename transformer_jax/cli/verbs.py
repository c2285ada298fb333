"""What each verb does. jax is imported here, inside the functions, and by nothing before them."""

import argparse
from collections.abc import Callable
from io import BufferedIOBase
from itertools import batched
from pathlib import Path
from typing import Any

from transformer_jax.cli import inspecting, streams
from transformer_jax.cli.flags import BENCHMARK_SIZES
from transformer_jax.cli.lines import LineCount, escape, example_of, read_batches, unescape
from transformer_jax.cli.prefixes import open_prefixes
from transformer_jax.cli.shared_flags import DECODE_OPTIONS, load_run
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

    streams.write(f"{as_text(rows)}\n")


def evaluate(args: argparse.Namespace) -> None:
    """Prints the metrics of a split or of two files as one JSON object."""
    examples = _examples_to_score(args)
    run = _load(args)
    if args.choices is None:
        options = _given(args, ("command", *DECODE_OPTIONS))
        metrics = run.evaluate(**examples, **options)
    else:
        from transformer_jax.runs.evaluating import evaluate_choices

        metrics = evaluate_choices(run.task, run.params, args.choices, run.settings.decode)
        metrics["step"] = run.step
    _print_once(to_json(metrics))


def predict(args: argparse.Namespace) -> None:
    """Writes one line for each line of stdin, which the first process of a job reads for all."""
    from transformer_jax.parallel import hosts

    stdin, run = streams.read_stdin(), _load(args)
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
            streams.flush()
            number += len(lines)
            count.advance(len(lines))


def _reads_objects(run: Any) -> bool:
    from transformer_jax.tasks.abilities import ReadsObjects

    return isinstance(run.task, ReadsObjects)


def _stream(run: Any, options: dict[str, Any], stdin: BufferedIOBase) -> None:
    for lines in read_batches(stdin, most=1):
        for piece in run.stream(example_of(lines[0], _reads_objects(run)), **options):
            streams.write(piece)
            streams.flush()
        streams.write("\n")


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
            streams.flush()
            count.advance(len(chunk))


def plot(args: argparse.Namespace) -> None:
    """Draws runs, the attention of one, or a config; prints the picture's path."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.runs.modules import load_modules
    from transformer_jax.runs.workdir import METRICS, with_files
    from transformer_jax.tools.pictures import plot_config, plot_runs

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
    streams.write(f"{output}\n")


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
    streams.write(f"{to_json(measured)}\n")


def _load(args: argparse.Namespace) -> Any:
    if args.distributed:
        from transformer_jax.runs.config import load_json
        from transformer_jax.runs.workdir import CONFIG, with_files

        _in_job(args, lambda: load_json(with_files(args.workdir, (CONFIG,)) / CONFIG))
    return load_run(args)


def _in_job(args: argparse.Namespace, load: Callable[[], Any]) -> Any:
    """The config that `load` reads, the user's modules before it; in a job of many processes, once
    all of them have the same and are connected, before JAX looks at its devices."""
    from transformer_jax.runs.modules import load_modules

    if not args.distributed:
        load_modules(args.modules, args.workdir)
        return load()
    from transformer_jax.parallel.joining import Job, join
    from transformer_jax.runs import statement

    def prepare() -> tuple[Any, dict[str, str]]:
        modules, config = load_modules(args.modules, args.workdir), load()
        flags = {name: value for name, value in vars(args).items() if name not in OWN_FLAGS}
        files = {name: flags.pop(name) for name in FILE_FLAGS if name in flags}
        return config, statement.of_command(config, modules, flags, files)

    job = Job(args.coordinator, args.num_processes, args.process_id)
    return join(job, prepare, lambda config: config.parallel.heartbeat_seconds)


def _print_once(line: str) -> None:
    """A line of results, from the first process alone."""
    from transformer_jax.parallel import hosts

    if hosts.is_primary():
        streams.write(f"{line}\n")


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
