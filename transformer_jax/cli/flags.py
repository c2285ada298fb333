"""The verbs and their flags, declared."""

import argparse
from typing import Any

from transformer_jax.cli.chatting import add_chat
from transformer_jax.cli.exchange import add_export, add_import
from transformer_jax.cli.inspecting import add_inspect
from transformer_jax.cli.one_line_parser import OVERRIDE, PROGRAM, OneLineParser, Verbs
from transformer_jax.cli.plans import add_plan
from transformer_jax.cli.shared_flags import (
    add_base,
    add_config,
    add_decode_options,
    add_distributed,
    add_max_length,
    add_modules,
    add_patches,
    add_run,
)
from transformer_jax.cli.values import natural, pattern, positive, seeds

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
BENCHMARK_SIZES = {
    "train": ("batch_size", "source_length", "target_length", "steps"),
    "decode": ("batch_size", "source_length", "beam_size", "output_length", "steps"),
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
