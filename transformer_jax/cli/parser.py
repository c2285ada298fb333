"""From words to a verb and its flags. Imports nothing heavy: `--help` answers at once."""

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformer_jax.cli.arguments import (
    BENCHMARK_SIZES,
    DECODE_OPTIONS,
    OVERRIDE,
    PROGRAM,
    OneLineParser,
    Verbs,
    add_base,
    add_config,
    add_decode_options,
    add_distributed,
    add_max_length,
    add_modules,
    add_patches,
    add_run,
    natural,
    pattern,
    positive,
    seeds,
)
from transformer_jax.cli.inspecting import add_inspect
from transformer_jax.cli.verbs import add_chat, add_export, add_import, add_plan
from transformer_jax.errors import UserError

# FOLDED cli.flags: The verbs and their flags, declared.


VERBS: dict[str, dict[str, Any]] = {
    "train": {},
    "sweep": {},
    "evaluate": {},
    "predict": {},
    "chat": {},
    "score": {},
    "plot": {},
    "benchmark": {"train": {}, "decode": {}},
    "plan": {},
    "inspect": {},
    "import": {},
    "export": {},
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; fields of the config are not its business."""
    parser = OneLineParser(
        prog=PROGRAM, description="Trains, scores and uses Transformers; one config, one run."
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    _add_train(verbs)
    _add_sweep(verbs)
    _add_evaluate(verbs)
    _add_predict(verbs)
    add_chat(verbs)
    _add_score(verbs)
    _add_plot(verbs)
    _add_benchmark(verbs)
    add_plan(verbs)
    add_inspect(verbs)
    add_import(verbs)
    add_export(verbs)
    return parser


def _add_train(verbs: Verbs) -> None:
    train = verbs.add_parser(
        "train",
        help="train a config in a workdir, or go on from its last checkpoint",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE.",
    )
    add_config(train)
    train.add_argument("--workdir", metavar="DIR", help="where the run is kept; made if absent")
    train.add_argument(
        "--dry_run",
        action="store_true",
        help="print parameters, batch shapes and a memory estimate, and exit",
    )
    train.add_argument(
        "--seeds",
        type=seeds,
        metavar="N",
        help="train N seeds, from the config's upwards, together; each has a workdir in DIR",
    )
    add_modules(train)
    add_distributed(train)


def _add_sweep(verbs: Verbs) -> None:
    sweep = verbs.add_parser(
        "sweep",
        help="train the rows of a sweep, several seeds each; prints and keeps a table",
        epilog=f"Any field can be set for all rows: {OVERRIDE}SECTION.FIELD=VALUE. The same "
        "command goes on where it stopped.",
    )
    sweep.add_argument("--sweep", metavar="FILE", help="the experiment, as experiments/NAME.py")
    sweep.add_argument("--config", metavar="FILE", help="instead of the sweep's own base config")
    sweep.add_argument("--workdir", metavar="DIR", help="where runs and tables are kept")
    sweep.add_argument(
        "--rows",
        type=pattern,
        default="",
        metavar="REGEX",
        help="only rows whose name has it",
    )
    sweep.add_argument("--seeds", type=seeds, metavar="N", help="instead of the sweep's own")
    sweep.add_argument(
        "--at_once", type=positive, metavar="N", help="seeds in one program (default: all)"
    )
    add_modules(sweep)


def _add_evaluate(verbs: Verbs) -> None:
    evaluate = verbs.add_parser(
        "evaluate",
        help="score a run; prints one JSON object",
        epilog="Files are one example a line.",
    )
    add_run(evaluate)
    add_max_length(evaluate)
    add_patches(evaluate)
    evaluate.add_argument("--split", help="the split of the run's data to score (default: test)")
    evaluate.add_argument("--source", metavar="FILE", help="score this file instead of a split")
    evaluate.add_argument("--target", metavar="FILE", help="the references of --source")
    evaluate.add_argument(
        "--choices", metavar="FILE", help="score a language model by this file of multiple choice"
    )
    evaluate.add_argument(
        "--command",
        help="a program that scores the outputs, too: JSON lines in, one object of numbers out",
    )
    add_decode_options(evaluate)
    add_distributed(evaluate)


def _add_predict(verbs: Verbs) -> None:
    predict = verbs.add_parser(
        "predict",
        help="read one example a line from stdin, write one line for each",
        epilog=r"In a line, \\ stands for a backslash, \n for a line feed and \r for a carriage "
        r"return; the output is written in the same way, unless --format=jsonl.",
    )
    add_run(predict)
    add_max_length(predict)
    add_patches(predict)
    predict.add_argument("--format", choices=("text", "jsonl"), default="text")
    predict.add_argument(
        "--num_outputs",
        type=positive,
        metavar="N",
        help="outputs an example, best first; more than one needs --format=jsonl",
    )
    predict.add_argument(
        "--prefixes", metavar="FILE", help="what each output starts with, one line an example"
    )
    predict.add_argument(
        "--stream",
        action="store_true",
        help="write an output piece by piece as it is drawn, one example at a time, unescaped",
    )
    add_decode_options(predict)
    add_distributed(predict)


def _add_score(verbs: Verbs) -> None:
    score = verbs.add_parser(
        "score",
        help="print log P(target | source) of each pair of two files, in nats, one a line",
        epilog="Files are one example a line.",
    )
    add_run(score)
    add_patches(score)
    score.add_argument("--source", metavar="FILE")
    score.add_argument("--target", metavar="FILE")
    score.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="jsonl: objects that also tell whether greedy search writes the target",
    )
    add_distributed(score)


def _add_plot(verbs: Verbs) -> None:
    plot = verbs.add_parser(
        "plot",
        help="draw the curves of runs, a run's attention, or a config's rates and positions",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE.",
    )
    add_config(plot)
    plot.add_argument("--workdir", metavar="DIR,DIR...", help="the runs to draw in one picture")
    plot.add_argument(
        "--attention",
        metavar="TEXT",
        help="draw what the heads of one run attend to in an example, in place of its curves",
    )
    plot.add_argument("--layer", type=natural, metavar="N", help="of --attention (default: last)")
    plot.add_argument(
        "--kind",
        choices=("encoder", "decoder", "cross"),
        help="of --attention: self-attention of a stack, or cross-attention (default: the last "
        "that the model has)",
    )
    plot.add_argument(
        "--output",
        metavar="FILE",
        help="the picture, a PNG, or an SVG where FILE ends in .svg (default: curves.png, "
        "attention.png or CONFIG.png, here)",
    )
    add_base(plot)
    add_modules(plot)


def _add_benchmark(verbs: Verbs) -> None:
    benchmark = verbs.add_parser(
        "benchmark", help="time a config's training step or search; prints one JSON object"
    )
    what = benchmark.add_subparsers(dest="what", metavar="train|decode", title="what to time")
    for name, sizes in BENCHMARK_SIZES.items():
        verb = what.add_parser(name, help=f"{name} on random tokens, warm, median of many")
        add_config(verb)
        for size in sizes:
            verb.add_argument(f"--{size}", type=positive, metavar="N")
        add_modules(verb)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The verb and its flags; `overrides` maps `SECTION.FIELD` to the text given for it.

    Raises:
      UserError: an unknown verb or flag (the nearest is named), a missing or malformed one.
    """
    words, overrides = take_overrides(argv)
    _check_verbs(words)
    args, unknown = build_parser().parse_known_args(words)
    _check_unknown(args, unknown)
    _check_overrides(args, overrides)
    _check_required(args)
    _check_together(args)
    _check_distributed(args)
    args.overrides = overrides
    return args


def take_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates `--config.a.b=value` and `--config.a.b value` from the other words.

    Returns:
      The other words, and {"a.b": "value"}.

    Raises:
      UserError: a field has no value.
    """
    words, overrides = [], {}
    rest = iter(argv)
    for word in rest:
        if word.startswith("--") and word.endswith("=--"):  # which argparse takes for a list
            raise UserError(f"{word.removesuffix('=--')} has no value; -- is none")
        if not word.startswith(OVERRIDE):
            words.append(word)
            continue
        flag, has_value, value = word.partition("=")
        if not has_value:
            value = next(rest, "--")
            if value.startswith("--"):
                raise UserError(f"{flag} has no value; write {flag}=VALUE")
        overrides[flag.removeprefix(OVERRIDE)] = value
    return words, overrides


def _check_verbs(words: Sequence[str]) -> None:
    known = VERBS
    for word in words:
        if not known or word.startswith("-"):
            return
        if word not in known:
            raise UserError(_unknown("verb", word, known))
        known = known[word]


def _check_unknown(args: argparse.Namespace, unknown: Sequence[str]) -> None:
    if not unknown:
        return
    word = unknown[0].partition("=")[0]
    if not word.startswith("-"):
        raise UserError(f"unexpected argument {word}; flags are written --FLAG=VALUE")
    flags = ["--" + name for name in vars(args) if name not in ("verb", "what")]
    raise UserError(_unknown("flag", word, flags or ["--help"]))


def _check_overrides(args: argparse.Namespace, overrides: Mapping[str, str]) -> None:
    of_runs = args.verb == "plot" and args.workdir is not None
    if overrides and (of_runs or args.verb in _OF_RUNS):
        raise UserError(
            f"{args.verb} takes no {OVERRIDE}{next(iter(overrides))}: "
            "a run keeps the config that it was trained with"
        )


def _check_required(args: argparse.Namespace) -> None:
    # Not left to argparse, which would report a misspelt flag as a missing one.
    if args.verb is None or getattr(args, "what", "") is None:
        known = VERBS if args.verb is None else VERBS[args.verb]
        place = f"{PROGRAM} {args.verb or ''}".strip()
        raise UserError(f"`{place}` needs a verb: {', '.join(known)}; see `{place} --help`")
    required = {"config", "workdir"} & vars(args).keys()
    if getattr(args, "dry_run", False):
        required.remove("workdir")
    if args.verb == "sweep":
        required = {"sweep", "workdir"}
    required |= _REQUIRED.get(args.verb, set())
    if args.verb == "plot":
        required -= {"config", "workdir"}
        if (args.config is None) == (args.workdir is None):
            raise UserError("plot needs --workdir, of runs to draw, or --config: one of them")
    for name in sorted(required):
        if getattr(args, name) is None:
            raise UserError(f"{args.verb} needs --{name}; see `{PROGRAM} {args.verb} --help`")


def _check_together(args: argparse.Namespace) -> None:
    """Refuses flags of which one would be ignored."""
    given = {name for name, value in vars(args).items() if value is not None and value is not False}
    if getattr(args, "format", None) == "text":  # its default
        given.remove("format")
    if args.verb == "predict" and "format" not in given and (args.num_outputs or 1) > 1:
        raise UserError("--num_outputs above 1 needs --format=jsonl: text has one line an example")
    if args.verb == "plot" and args.attention is None:
        for name in ("kind", "layer", "base"):
            if getattr(args, name) is not None:
                raise UserError(f"--{name} goes with --attention")
    for name, others in _EXCLUDED.items():
        if name in given and (excluded := sorted(given & others)):
            raise UserError(f"--{excluded[0]} does not go with --{name}; leave one of them out")


_OF_RUNS = ("evaluate", "predict", "chat", "score", "inspect", "import", "export")
_REQUIRED = {
    "score": {"source", "target"},
    "plan": {"device"},
    "inspect": {"to"},
    "import": {"from"},
    "export": {"to", "format"},
}
"""Flags that verbs need besides --config or --workdir."""
_EXCLUDED = {
    "stream": {"num_outputs", "format", "prefixes", "batch_size", "distributed"},
    "seeds": {"dry_run", "distributed"},
    "attention": {"config"},
    "choices": {"split", "source", "target", "command", *DECODE_OPTIONS},
}
"""Flags and those that would do nothing beside them."""


def _check_distributed(args: argparse.Namespace) -> None:
    if getattr(args, "distributed", True):
        return
    for name in ("coordinator", "num_processes", "process_id"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} goes with --distributed")


def _unknown(kind: str, word: str, known: Collection[str]) -> str:
    begun = [name for name in known if name.startswith(word)]
    near = begun or difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {word}; {hint}"
