# SPDX-License-Identifier: Apache-2.0
"""Parses a command line: verbs, flags and overrides of config fields.

Imports nothing heavy, so that `--help` answers at once.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.cli.arguments import (
    BENCHMARK_SIZES,
    DECODE_OPTIONS,
    OVERRIDE,
    PROGRAM,
    OneLineParser,
    PrintVersion,
    Verbs,
    add_base_flag,
    add_config_flag,
    add_decode_flags,
    add_distributed_flags,
    add_escape_flag,
    add_max_length_flag,
    add_modules_flag,
    add_patch_flag,
    add_run_flags,
    natural_int,
    positive_int,
    regular_expression,
    seed_count,
)
from transformer_jax.cli.completion import SHELLS
from transformer_jax.errors import UserError
from transformer_jax.suggestions import FLAG_SYNONYMS, VERB_SYNONYMS, fields_named, suggest

VERBS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "train": {},
    "sweep": {},
    "table": {},
    "evaluate": {},
    "predict": {},
    "chat": {},
    "score": {},
    "embed": {},
    "plot": {},
    "compare": {},
    "claim": {},
    "reproduce": {},
    "benchmark": {"train": {}, "decode": {}},
    "plan": {},
    "verify": {},
    "inspect": {},
    "import": {},
    "export": {},
    "configs": {},
    "fields": {},
    "completion": {},
}
"""Verbs, and the verbs that may follow each of them."""

CHAT_COMMANDS = (
    "/reset starts over, /system TEXT starts over with an instruction how to answer, /quit ends"
)

_ANY_FIELD = f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE."

_RUN_VERBS = (
    *("evaluate", "predict", "chat", "score", "embed", "inspect", "import", "export"),
    "compare",
)
"""Verbs that take no config: the run has its own."""
_SEARCH_VERBS = ("evaluate", "predict", "chat")
"""Of these, the verbs that take options of a search."""
_OF_SEARCH = re.compile(r"decode\.\w+\.")  # decode.SEARCH.OPTION
_POSITIONAL = ("verb", "what", "pattern", "shell", "runs", "names", "item", "folders")
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
    "replay": {"sweep", "config", "seeds", "at_once", "plan"},
    "attention": {"config", "errors", "tree"},
    "errors": {"config", "tree"},
    "tree": {"config"},
    "scale": {"config"},
    "choices": {"split", "source", "target", "command", *DECODE_OPTIONS},
}
"""Flags, and the flags that have no effect beside each of them."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a verb and its flags; `overrides` maps SECTION.FIELD to the text of its value.

    Raises:
      UserError: a verb or flag is unknown (the message names the nearest), missing or malformed.
    """
    words, overrides = take_overrides(argv)
    _check_verbs(words)
    args, unknown = build_parser().parse_known_args(words)
    _check_unknown(args, unknown)
    _check_overrides(args, overrides)
    _check_required(args)
    _check_exclusive(args)
    _check_distributed(args)
    args.overrides = overrides
    return args


def take_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates overrides (`--config.a.b=value` or `--config.a.b value`) from the other words.

    Returns:
      The other words, and the overrides as {"a.b": "value"}.

    Raises:
      UserError: a field has no value.
    """
    words = []
    overrides = {}
    rest = iter(argv)
    for word in rest:
        if word.startswith("--") and word.endswith("=--"):  # argparse makes [] of it
            raise UserError(f"{word.removesuffix('=--')} has no value: -- is not a value")
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


def build_parser() -> argparse.ArgumentParser:
    """Parser of all verbs and their flags; `parse` handles the overrides of config fields."""
    parser = OneLineParser(
        prog=PROGRAM, description="Trains, scores and uses Transformers; one config, one run."
    )
    parser.add_argument(
        "--version", action=PrintVersion, help="print the versions of this, jax and Python"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    _add_quickstart(verbs)
    _add_train(verbs)
    _add_sweep(verbs)
    _add_table(verbs)
    _add_evaluate(verbs)
    _add_predict(verbs)
    _add_chat(verbs)
    _add_score(verbs)
    _add_embed(verbs)
    _add_plot(verbs)
    _add_compare(verbs)
    _add_claim(verbs)
    _add_reproduce(verbs)
    measures = _add_benchmark(verbs)
    _add_plan(verbs)
    _add_verify(verbs)
    _add_inspect(verbs)
    _add_import(verbs)
    _add_export(verbs)
    verbs.add_parser("configs", help="list the configs that come with the project")
    _add_fields(verbs)
    _add_completion(verbs)
    for verb in [*verbs.choices.values(), *measures.choices.values()]:
        verb.add_argument(
            "--traceback",
            action="store_true",
            help="with an error, also print where in the code it was raised",
        )
    return parser


def _add_quickstart(verbs: Verbs) -> None:
    quickstart = verbs.add_parser(
        "quickstart",
        help="train, translate and score a small built-in task, in minutes on two cores",
        epilog="Prints scores, translations and the paths of pages to look at. If it is "
        "interrupted, the same command continues.",
    )
    quickstart.add_argument(
        "--workdir",
        metavar="DIR",
        default="runs/quickstart",
        help="the run's directory (default: runs/quickstart)",
    )


def _add_train(verbs: Verbs) -> None:
    train = verbs.add_parser(
        "train",
        help="train a config in a workdir, or resume from its last checkpoint",
        epilog=f"{_ANY_FIELD} Without --config, the run in DIR continues with its own.",
    )
    add_config_flag(train)
    train.add_argument("--workdir", metavar="DIR", help="the run's directory; made if absent")
    train.add_argument(
        "--dry_run",
        action="store_true",
        help="print parameters, batch shapes and a memory estimate, and exit",
    )
    train.add_argument(
        "--seeds",
        type=seed_count,
        metavar="N",
        help="train N seeds together, counted up from the config's; each has a workdir in DIR",
    )
    add_modules_flag(train)
    add_distributed_flags(train)


def _add_sweep(verbs: Verbs) -> None:
    sweep = verbs.add_parser(
        "sweep",
        help="train the rows of a sweep, several seeds each; prints and saves a table",
        epilog=f"Any field can be set for all rows: {OVERRIDE}SECTION.FIELD=VALUE. The same "
        "command resumes a sweep that stopped.",
    )
    sweep.add_argument(
        "--sweep", metavar="FILE", help="the sweep: a file, or the name of a shipped one"
    )
    sweep.add_argument("--config", metavar="FILE", help="instead of the sweep's own base config")
    sweep.add_argument("--workdir", metavar="DIR", help="directory of the runs and tables")
    _add_rows_flags(sweep)
    sweep.add_argument(
        "--plan",
        action="store_true",
        help="print what each row costs, what is finished and what remains, and exit",
    )
    sweep.add_argument(
        "--at_once",
        type=positive_int,
        metavar="N",
        help="seeds in one program (default: a row's, or 8)",
    )
    sweep.add_argument(
        "--replay",
        action="store_true",
        help="print the decisions of the search in DIR, and make them again; trains nothing",
    )
    add_modules_flag(sweep)


def _add_rows_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=regular_expression,
        default="",
        metavar="REGEX",
        help="only rows whose name contains a match",
    )
    parser.add_argument("--seeds", type=seed_count, metavar="N", help="instead of the sweep's own")


def _add_table(verbs: Verbs) -> None:
    table = verbs.add_parser(
        "table",
        help="print the table of one or several sweeps, or write it with figures for a paper",
        description="Merges the finished rows of sweeps: rows of one name and config are one row "
        "with the seeds of all. The first row of the first folder is the base of all differences.",
    )
    table.add_argument(
        "folders", nargs="*", metavar="DIR", help="workdirs of sweeps, or of `train --seeds`"
    )
    table.add_argument("--format", choices=("text", "markdown", "latex", "csv"), default="text")
    table.add_argument(
        "--to",
        metavar="DIR",
        help="also write all forms of the table there, and figures as PDF and SVG: table, curves, "
        "differences",
    )


def _add_evaluate(verbs: Verbs) -> None:
    evaluate = verbs.add_parser(
        "evaluate",
        help="score a run; prints one JSON object",
        epilog="Files are one example a line.",
    )
    add_run_flags(evaluate, ensembles=True)
    add_max_length_flag(evaluate)
    add_patch_flag(evaluate)
    evaluate.add_argument(
        "--split",
        help="the split of the run's data to score (default: test; valid if there is none)",
    )
    evaluate.add_argument("--source", metavar="FILE", help="score this file instead of a split")
    evaluate.add_argument("--target", metavar="FILE", help="the references of --source")
    evaluate.add_argument(
        "--choices",
        metavar="FILE",
        help="score a language model on this file of multiple-choice questions",
    )
    evaluate.add_argument(
        "--command",
        help="also score the outputs by this program: JSON lines in, one object of numbers out",
    )
    add_decode_flags(evaluate)
    add_distributed_flags(evaluate)


def _add_predict(verbs: Verbs) -> None:
    predict = verbs.add_parser(
        "predict",
        help="read one example a line from stdin, write one line for each",
        epilog=r"Lines are read as they are. In an output, a line feed is written as \n and a "
        r"carriage return as \r; --format=jsonl is exact, and --escape exact in both directions.",
    )
    add_run_flags(predict, ensembles=True)
    add_max_length_flag(predict)
    add_patch_flag(predict)
    predict.add_argument("--format", choices=("text", "jsonl"), default="text")
    predict.add_argument(
        "--num_outputs",
        type=positive_int,
        metavar="N",
        help="outputs an example, best first; more than one needs --format=jsonl",
    )
    predict.add_argument(
        "--prefixes", metavar="FILE", help="how each output starts, one line an example"
    )
    add_escape_flag(predict)
    predict.add_argument(
        "--stream",
        action="store_true",
        help="write an output piece by piece as it is generated, one example at a time, with its "
        "line feeds",
    )
    add_decode_flags(predict)
    add_distributed_flags(predict)


def _add_chat(verbs: Verbs) -> None:
    chat = verbs.add_parser(
        "chat",
        help="talk to a run that follows instructions",
        epilog=f"One question per line; {CHAT_COMMANDS}.",
    )
    add_run_flags(chat, ensembles=True)
    chat.add_argument(
        "--template",
        metavar="NAME",
        help="format of the conversation, as task.template: chatml, llama3, ..., or model, that of "
        "the imported model (default: the run's; of a language model, its tokenizer's)",
    )
    add_max_length_flag(chat)
    add_decode_flags(chat)


def _add_score(verbs: Verbs) -> None:
    score = verbs.add_parser(
        "score",
        help="print log P(target | source) of each pair of two files, in nats, one a line",
        epilog="Files are one example a line.",
    )
    add_run_flags(score, ensembles=True)
    add_patch_flag(score)
    score.add_argument("--source", metavar="FILE")
    score.add_argument("--target", metavar="FILE")
    score.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="jsonl: objects that also say whether greedy search generates the target",
    )
    add_escape_flag(score)
    add_distributed_flags(score)


def _add_embed(verbs: Verbs) -> None:
    embed = verbs.add_parser(
        "embed", help="read one text a line from stdin, write its vector as a JSON list, one a line"
    )
    add_run_flags(embed)
    add_max_length_flag(embed)
    embed.add_argument(
        "--pooling",
        choices=("mean", "cls", "max"),
        help="how vectors of tokens become one (default: task.pooling, as imported)",
    )
    embed.add_argument(
        "--normalize",
        choices=("true", "false"),
        help="scale vectors to length 1 (default: task.normalize, as imported)",
    )
    add_escape_flag(embed)


def _add_compare(verbs: Verbs) -> None:
    compare = verbs.add_parser(
        "compare",
        help="whether runs differ: over seeds, and over the examples of a test set",
        description="Compares runs with the first one: what differs in config, data and code, and "
        "whether metrics do, by tests over seeds (Welch, permutation, Holm) and over examples "
        "(sacreBLEU's paired tests, approximate randomization).",
    )
    compare.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="workdirs, the base first; the folder of `train --seeds` or of a sweep's row is a run "
        "of several seeds",
    )
    compare.add_argument(
        "--split",
        default="test",
        help="compare the outputs that `evaluate --split=...` wrote (default: test)",
    )
    compare.add_argument(
        "--metrics", metavar="NAME,NAME...", help="validation metrics to test (default: all)"
    )
    compare.add_argument(
        "--loss", action="store_true", help="also test the loss per example of the split"
    )
    compare.add_argument("--format", choices=("text", "json"), default="text")
    compare.add_argument("--to", metavar="FILE", help="also write a page, FILE.html")
    add_modules_flag(compare)


def _add_claim(verbs: Verbs) -> None:
    claim = verbs.add_parser(
        "claim",
        help="decide a claim about models by a sequential test over seeds",
        description="Trains both rows of a claim with more and more seeds until the test decides "
        "or the seeds of its last look are trained, and writes NAME.verdict.json. --check says "
        "which verdicts are out of date because the claim, code, a config or data have changed; "
        "without names, of all recorded verdicts on shipped claims.",
        epilog=_ANY_FIELD,
    )
    claim.add_argument(
        "names", nargs="*", metavar="CLAIM", help="a claim file; with --check verdicts"
    )
    claim.add_argument("--workdir", metavar="DIR", help="of the runs; the same command resumes")
    claim.add_argument("--check", action="store_true", help="only say which are out of date")
    claim.add_argument("--format", choices=("text", "json"), default="text")
    add_modules_flag(claim)


def _add_reproduce(verbs: Verbs) -> None:
    reproduce = verbs.add_parser(
        "reproduce",
        help="a table or figure of a paper beside your own runs, and which statements hold",
        description="Trains the rows of a paper's table at a small scale, or with a config of "
        "yours, and prints the paper's numbers beside them. Without an item it lists what there "
        "is.",
        epilog=f"{_ANY_FIELD} The same command resumes.",
    )
    reproduce.add_argument(
        "item", nargs="?", metavar="PAPER/ITEM", help="such as vaswani2017/table3"
    )
    reproduce.add_argument("--workdir", metavar="DIR", help="of the runs and the report")
    reproduce.add_argument("--scale", metavar="NAME", help="size of the runs (default: tiny)")
    reproduce.add_argument("--config", metavar="FILE", help="a config in place of a scale")
    _add_rows_flags(reproduce)
    reproduce.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    add_modules_flag(reproduce)


def _add_plot(verbs: Verbs) -> None:
    plot = verbs.add_parser(
        "plot",
        help="draw runs, a sweep, a run's attention, errors or trees, or a config's rates and "
        "positions",
        epilog=_ANY_FIELD,
    )
    add_config_flag(plot)
    plot.add_argument(
        "--workdir",
        metavar="DIR,DIR...",
        help="the runs to draw in one picture (of seeds: their mean, with a band), or one sweep",
    )
    plot.add_argument(
        "--attention",
        metavar="TEXT",
        help="draw the attention of one run on an example instead of its curves",
    )
    plot.add_argument(
        "--layer", type=natural_int, metavar="N", help="of --attention (default: last)"
    )
    plot.add_argument(
        "--kind",
        choices=("encoder", "decoder", "cross"),
        help="of --attention: self-attention of a stack, or cross-attention (default: the last "
        "that the model has)",
    )
    plot.add_argument(
        "--tree",
        metavar="TEXT",
        help="draw a tree in brackets, or with --workdir the tree that a parser's run finds",
    )
    plot.add_argument(
        "--errors",
        choices=("confusion", "calibration", "worst", "class", "length", "frequency"),
        help="draw the errors of a classifier or tagger that `evaluate` has scored: its confusion "
        "matrix, calibration, worst errors, or error rates by class, length or word frequency",
    )
    plot.add_argument("--split", help="of --errors (default: test)")
    plot.add_argument(
        "--output",
        metavar="FILE",
        help="the picture; FILE ends in .png, .svg or .pdf (default: what is drawn, such as "
        "curves.png, here)",
    )
    add_base_flag(plot)
    add_modules_flag(plot)


def _add_benchmark(verbs: Verbs) -> Verbs:
    """Returns the verbs that follow `benchmark`: train and decode."""
    benchmark = verbs.add_parser(
        "benchmark", help="time a config's training step or search; prints one JSON object"
    )
    measures = benchmark.add_subparsers(dest="what", metavar="train|decode", title="what to time")
    for name, sizes in BENCHMARK_SIZES.items():
        verb = measures.add_parser(name, help=f"{name} on random tokens, warm, median of many")
        add_config_flag(verb)
        for size in sizes:
            verb.add_argument(f"--{size}", type=positive_int, metavar="N")
        add_modules_flag(verb)
    return measures


def _add_plan(verbs: Verbs) -> None:
    plan = verbs.add_parser(
        "plan",
        help="compile a config's step for devices that are not here; prints what it would cost",
        epilog=f"{_ANY_FIELD} One JSON object goes to stdout, a table to stderr.",
    )
    add_config_flag(plan)
    plan.add_argument(
        "--device",
        metavar="KIND:SIZE",
        help="h100:8 (GPUs), h100:32x8 (hosts x GPUs), v5e:4x4 or v5p:4x4x8 (a slice of TPUs)",
    )
    plan.add_argument(
        "--slices", type=positive_int, default=1, metavar="N", help="slices of TPUs (default: 1)"
    )
    plan.add_argument(
        "--decode", action="store_true", help="plan the search instead of the training step"
    )
    printed = plan.add_mutually_exclusive_group()
    printed.add_argument(
        "--search",
        action="store_true",
        help="try meshes, gradient accumulation and remat; rank what fits",
    )
    printed.add_argument(
        "--kernels",
        type=positive_int,
        default=0,
        metavar="N",
        help="also print the N groups of kernels that take longest",
    )
    add_modules_flag(plan)


def _add_verify(verbs: Verbs) -> None:
    verify = verbs.add_parser(
        "verify",
        help="check a component of yours: packed = padded, cached = full, causality, meshes, ...",
        epilog=f"Runs on CPUs, in a shrunk version of the config; {OVERRIDE}SECTION.FIELD=VALUE "
        "keeps a field as it is given. Exit status 1: something differs, or was not run.",
    )
    add_config_flag(verify)
    add_modules_flag(verify)
    verify.add_argument(
        "--only",
        type=regular_expression,
        default="",
        metavar="REGEX",
        help="only oracles whose name contains a match",
    )
    verify.add_argument(
        "--seconds",
        type=positive_int,
        metavar="N",
        help="time limit; what has not ended by then is not run (default: 600)",
    )
    verify.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object on stdout"
    )


def _add_inspect(verbs: Verbs) -> None:
    inspect = verbs.add_parser(
        "inspect",
        help="read one example a line from stdin, write a page of what the model does with each",
        epilog="DIR is new or empty. A page is one HTML file, named after its line; index.html "
        "lists them. Their paths are printed.",
    )
    add_run_flags(inspect)
    add_max_length_flag(inspect)
    add_patch_flag(inspect)
    add_escape_flag(inspect)
    inspect.add_argument("--to", metavar="DIR", help="where pages are written; made if absent")
    inspect.add_argument(
        "--walk",
        action="store_true",
        help="write the model's computation step by step instead of its attention",
    )


def _add_import(verbs: Verbs) -> None:
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
    importing.add_argument(
        "--allow_nonfinite",
        action="store_true",
        help="import weights with NaN or infinity, which are refused otherwise",
    )


def _add_export(verbs: Verbs) -> None:
    export = verbs.add_parser(
        "export", help="write a run for transformers or CTranslate2", epilog="DIR is new or empty."
    )
    add_run_flags(export)
    export.add_argument("--to", metavar="DIR", help="the directory to write; made if absent")
    export.add_argument(
        "--format",
        choices=("hf", "ctranslate2"),
        help="hf: as transformers' save_pretrained; ctranslate2: needs its library (extra export)",
    )
    export.add_argument(
        "--quantization",
        choices=("float32", "int8"),
        help="of the matrices, for --format=ctranslate2 (default: float32)",
    )


def _add_fields(verbs: Verbs) -> None:
    fields = verbs.add_parser(
        "fields", help="list the fields of a config: type, default, choices and meaning"
    )
    fields.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        default="",
        help="part of the name SECTION.FIELD, or a glob such as 'data.*_text' (default: all)",
    )
    fields.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one list of objects"
    )
    add_modules_flag(fields)


def _add_completion(verbs: Verbs) -> None:
    completion = verbs.add_parser(
        "completion",
        help="print the script by which a shell completes command lines",
        epilog='bash: eval "$(transformer_jax completion bash)" in ~/.bashrc; zsh: the same in '
        "~/.zshrc, after compinit; fish: transformer_jax completion fish > "
        "~/.config/fish/completions/transformer_jax.fish",
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _check_verbs(words: Sequence[str]) -> None:
    verbs = VERBS
    for word in words:
        if not verbs or word.startswith("-"):
            return
        if word not in verbs:
            synonyms = VERB_SYNONYMS if verbs is VERBS else None
            hint = suggest(word, verbs, synonyms) or f"; known: {', '.join(verbs)}"
            raise UserError(f"unknown verb {word}{hint}")
        verbs = verbs[word]  # those that may follow this one


def _check_unknown(args: argparse.Namespace, unknown: Sequence[str]) -> None:
    if not unknown:
        return
    word = unknown[0].partition("=")[0]
    if not word.startswith("-"):
        raise UserError(f"unexpected argument {word}; flags are written --FLAG=VALUE")
    flags = ["--" + name for name in vars(args) if name not in _POSITIONAL]
    hint = suggest(word, flags or ["--help"], FLAG_SYNONYMS)
    fields = _fields_of_flag(args, word)
    if fields:
        overrides = " or ".join(f"{OVERRIDE}{field}=VALUE" for field in fields)
        hint = f"; did you mean {overrides}?"
    raise UserError(f"unknown flag {word}{hint or f'; known: {", ".join(flags)}'}")


def _fields_of_flag(args: argparse.Namespace, word: str) -> list[str]:
    """Fields of the config that an unknown flag names, if the verb takes a config."""
    if "config" not in vars(args):
        return []
    from transformer_jax.runs.settings import FIELDS  # takes seconds, only for an error

    return fields_named(word, FIELDS)


def _check_overrides(args: argparse.Namespace, overrides: Mapping[str, str]) -> None:
    draws_runs = args.verb == "plot" and args.workdir is not None
    if args.verb in _SEARCH_VERBS:
        overrides = {name: text for name, text in overrides.items() if not _OF_SEARCH.match(name)}
    if args.verb in ("evaluate", "compare") or draws_runs:  # places of data may have to be repeated
        overrides = {name: text for name, text in overrides.items() if not name.startswith("data.")}
    if overrides and (draws_runs or args.verb in _RUN_VERBS):
        raise UserError(
            f"{args.verb} takes no {OVERRIDE}{next(iter(overrides))}: "
            "the run uses the config that it was trained with"
        )


def _check_required(args: argparse.Namespace) -> None:
    # Not by `required=True` of argparse, which would report a misspelt flag as a missing one.
    if args.verb is None or getattr(args, "what", "") is None:
        verbs = VERBS if args.verb is None else VERBS[args.verb]
        command = f"{PROGRAM} {args.verb or ''}".strip()
        raise UserError(f"`{command}` needs a verb: {', '.join(verbs)}; see `{command} --help`")
    required = {"config", "workdir"} & vars(args).keys()
    if getattr(args, "dry_run", False):
        required.remove("workdir")
    elif args.verb == "train" and args.workdir is not None and not args.seeds:
        required.remove("config")  # the run in the workdir has one
    if args.verb == "sweep":
        required = {"sweep", "workdir"}
        if args.plan:
            required.remove("workdir")
        if args.replay:
            required.remove("sweep")
    if args.verb == "reproduce":  # what it needs depends on the item
        required = set()
    if args.verb == "claim" and args.check:
        required.remove("workdir")
    required |= _REQUIRED.get(args.verb, set())
    if args.verb == "plot":
        required -= {"config", "workdir"}
        if args.tree is None and (args.config is None) == (args.workdir is None):
            raise UserError("plot needs either --workdir (runs to draw), --config or --tree")
    for name in sorted(required):
        if getattr(args, name) is None:
            raise UserError(f"{args.verb} needs --{name}; see `{PROGRAM} {args.verb} --help`")


def _check_exclusive(args: argparse.Namespace) -> None:
    """Raises UserError if a flag would have no effect beside another."""
    flags = {name for name, value in vars(args).items() if value is not None and value is not False}
    if getattr(args, "format", None) == "text":  # its default
        flags.remove("format")
    if args.verb == "predict" and "format" not in flags and (args.num_outputs or 1) > 1:
        raise UserError("--num_outputs above 1 needs --format=jsonl: text has one line an example")
    if args.verb == "plot":
        for name in ("kind", "layer", "base", "split"):
            other = "errors" if name == "split" else "attention"
            if getattr(args, name) is not None and getattr(args, other) is None:
                raise UserError(f"--{name} goes with --{other}")
    for name, others in _EXCLUDED.items():
        excluded = sorted(flags & others)
        if name in flags and excluded:
            raise UserError(f"--{excluded[0]} does not go with --{name}; leave one of them out")


def _check_distributed(args: argparse.Namespace) -> None:
    if getattr(args, "distributed", True):
        return
    for name in ("coordinator", "num_processes", "process_id"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} goes with --distributed")
