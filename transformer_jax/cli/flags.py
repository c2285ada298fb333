"""The verbs and their flags, declared."""

import argparse
import re

from transformer_jax.errors import UserError

PROGRAM = "python -m transformer_jax"
OVERRIDE = "--config."
VERBS = {
    "train": {},
    "sweep": {},
    "evaluate": {},
    "predict": {},
    "score": {},
    "plot": {},
    "benchmark": {"train": {}, "decode": {}},
}
DECODE_OPTIONS = {
    "beam_size": int,
    "alpha": float,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
    "repetition_penalty": float,
    "stop": str,
    "max_extra_length": int,
    "batch_size": int,
    "weights": str,
}
BENCHMARK_SIZES = {
    "train": ("batch_size", "source_length", "target_length", "steps"),
    "decode": ("batch_size", "source_length", "beam_size", "output_length", "steps"),
}


class OneLineParser(argparse.ArgumentParser):
    """Raises its errors, without the usage text, and takes no abbreviated flags."""

    def __init__(self, **options):
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str):
        verb = self.prog.removeprefix(PROGRAM).strip()
        raise UserError(f"{verb}: {message}" if verb else message)


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
    _add_score(verbs)
    _add_plot(verbs)
    _add_benchmark(verbs)
    return parser


def _add_train(verbs) -> None:
    train = verbs.add_parser(
        "train",
        help="train a config in a workdir, or go on from its last checkpoint",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE.",
    )
    _add_config(train)
    train.add_argument("--workdir", metavar="DIR", help="where the run is kept; made if absent")
    train.add_argument(
        "--dry_run",
        action="store_true",
        help="print parameters, batch shapes and a memory estimate, and exit",
    )
    train.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="train N seeds, from the config's upwards, together; each has a workdir in DIR",
    )
    _add_distributed(train)


def _add_sweep(verbs) -> None:
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
        "--rows", type=_pattern, default="", metavar="REGEX", help="only rows whose name has it"
    )
    sweep.add_argument("--seeds", type=_positive, metavar="N", help="instead of the sweep's own")
    sweep.add_argument(
        "--at_once", type=_positive, metavar="N", help="seeds in one program (default: all)"
    )


def _add_evaluate(verbs) -> None:
    evaluate = verbs.add_parser(
        "evaluate",
        help="score a run; prints one JSON object",
        epilog="Files are one example a line.",
    )
    _add_run(evaluate)
    evaluate.add_argument("--split", help="the split of the run's data to score (default: test)")
    evaluate.add_argument("--source", metavar="FILE", help="score this file instead of a split")
    evaluate.add_argument("--target", metavar="FILE", help="the references of --source")
    _add_decode_options(evaluate)
    _add_distributed(evaluate)


def _add_predict(verbs) -> None:
    predict = verbs.add_parser(
        "predict",
        help="read one example a line from stdin, write one line for each",
        epilog=r"In a line, \\ stands for a backslash, \n for a line feed and \r for a carriage "
        r"return; the output is written in the same way, unless --format=jsonl.",
    )
    _add_run(predict)
    predict.add_argument("--format", choices=("text", "jsonl"), default="text")
    predict.add_argument(
        "--num_outputs",
        type=_positive,
        default=1,
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
    _add_decode_options(predict)
    _add_distributed(predict)


def _add_score(verbs) -> None:
    score = verbs.add_parser(
        "score",
        help="print log P(target | source) of each pair of two files, in nats, one a line",
        epilog="Files are one example a line.",
    )
    _add_run(score)
    score.add_argument("--source", metavar="FILE")
    score.add_argument("--target", metavar="FILE")
    _add_distributed(score)


def _add_plot(verbs) -> None:
    plot = verbs.add_parser(
        "plot",
        help="draw the curves of runs, or a config's learning rate and positions, as a PNG",
        epilog=f"Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE.",
    )
    _add_config(plot)
    plot.add_argument("--workdir", metavar="DIR,DIR...", help="the runs to draw in one picture")
    plot.add_argument(
        "--output", metavar="FILE", help="the picture (default: curves.png or CONFIG.png, here)"
    )


def _add_benchmark(verbs) -> None:
    benchmark = verbs.add_parser(
        "benchmark", help="time a config's training step or search; prints one JSON object"
    )
    what = benchmark.add_subparsers(dest="what", metavar="train|decode", title="what to time")
    for name, sizes in BENCHMARK_SIZES.items():
        verb = what.add_parser(name, help=f"{name} on random tokens, warm, median of many")
        _add_config(verb)
        for size in sizes:
            verb.add_argument(f"--{size}", type=_positive, metavar="N")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="the experiment, such as configs/NAME.py")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", metavar="DIR", help="the run's directory")
    parser.add_argument(
        "--checkpoint",
        type=_checkpoint,
        default="latest",
        metavar="latest|best|STEP",
        help="which parameters to use (default: latest)",
    )
    parser.add_argument(
        "--average", type=_positive, metavar="K", help="average the last K parameter snapshots"
    )
    parser.add_argument(
        "--max_length", type=_positive, metavar="N", help="of sequences, instead of the trained one"
    )


def _add_distributed(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "many processes", "the same command in each; Slurm, Open MPI, Kubernetes and TPUs are asked"
    )
    group.add_argument("--distributed", action="store_true", help="join the job's other processes")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0, if not detected")
    group.add_argument("--num_processes", type=_positive, metavar="N", help="if not detected")
    group.add_argument("--process_id", type=_natural, metavar="I", help="if not detected")


def _add_decode_options(parser: argparse.ArgumentParser) -> None:
    for name, kind in DECODE_OPTIONS.items():
        metavar = {float: "X", int: "N", str: "TEXT"}[kind]
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"instead of the config's decode.{name}"
        )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _checkpoint(text: str) -> str | int:
    if text in ("latest", "best"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not latest, best or the number of a step")
    return int(text)
