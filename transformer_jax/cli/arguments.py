"""Flags that several verbs have."""

import argparse
import math
import re
from typing import Any, NoReturn

from transformer_jax.cli import terminal
from transformer_jax.errors import UserError

BENCHMARK_SIZES = {
    "train": ("batch_size", "source_length", "target_length", "steps"),
    "decode": ("batch_size", "source_length", "beam_size", "output_length", "steps"),
}
"""Flags of `benchmark` for the sizes that are measured."""

# FOLDED cli.values: Values of flags: text to number, step, pattern or names; argparse tells what
# cannot be read.


_DIGITS = 19  # as many as 2^63 has
_MOST_SEEDS = 1000
_MOST = 2**31 - 1  # in arrays, sizes are int32


def positive(text: str) -> int:
    """A whole number from 1 to 2^31 - 1."""
    if not 1 <= (number := _whole(text)) <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is not a positive whole number below 2^31"
        )
    return number


def seeds(text: str) -> int:
    """How many seeds train together: their parameters are all held at once."""
    if (number := positive(text)) > _MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{number} seeds; at most {_MOST_SEEDS} train together")
    return number


def natural(text: str) -> int:
    """A whole number from 0 to 2^31 - 1."""
    if not 0 <= (number := _whole(text)) <= _MOST:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number from 0 to 2^31 - 1")
    return number


def _whole(text: str) -> int:
    """The number; -1 for any other text, and for more digits than any number here has."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else -1


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def checkpoint(text: str) -> str | int:
    """latest, best or the number of a step."""
    if text in ("latest", "best"):
        return text
    if (step := _whole(text)) < 0:
        told = f"{_shown(text)} is not latest, best or the number of a step"
        raise argparse.ArgumentTypeError(told)
    return step


def address(text: str) -> str:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 10.0.0.1:1234")
    return text


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in text.split(",") if name]


def patch(text: str) -> tuple[str, float]:
    """PLACE=X: a place of the model and a finite number."""
    place, _, number = text.rpartition("=")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not place or not math.isfinite(scale):
        told = f"{_shown(text)} is not PLACE=X, as in encoder.layer_0.self_attention.heads[1]=0"
        raise argparse.ArgumentTypeError(told)
    return place, scale


def _shown(text: str) -> str:
    """A value in a message, which stays one line that can be read."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


DECODE_OPTIONS: dict[str, type] = {
    "search": str,
    "beam_size": int,
    "alpha": float,
    "length_penalty": str,
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


LENGTHS = ("data.max_length", "data.max_source_length", "data.max_target_length")


def add_config(parser: argparse.ArgumentParser) -> None:
    """The config file."""
    parser.add_argument("--config", metavar="FILE", help="the experiment, such as configs/NAME.py")


def add_run(parser: argparse.ArgumentParser) -> None:
    """A trained run, its parameters and what it needs."""
    parser.add_argument("--workdir", metavar="DIR", help="the run's directory")
    parser.add_argument(
        "--checkpoint",
        type=checkpoint,
        default="latest",
        metavar="latest|best|STEP",
        help="which parameters to use (default: latest)",
    )
    parser.add_argument(
        "--average",
        type=positive,
        metavar="K",
        help="average the last K parameter snapshots",
    )
    add_base(parser)
    add_modules(parser)


def add_base(parser: argparse.ArgumentParser) -> None:
    """The run that another one rests on."""
    parser.add_argument(
        "--base",
        metavar="RUN",
        help="the run under the adapters (LoRA), or that preferences are compared with, instead of "
        "the config's train.init_from; needed if that is an address or another user's folder",
    )


def add_max_length(parser: argparse.ArgumentParser) -> None:
    """How long texts may be."""
    parser.add_argument(
        "--max_length",
        type=positive,
        metavar="N",
        help="of sequences, instead of the trained one",
    )


def load_run(args: argparse.Namespace) -> Any:
    """The run that the flags of `add_run` name and, where a verb has them, those of
    `add_max_length` and `add_patches` change."""
    from transformer_jax.runs.load import load
    from transformer_jax.runtime.platform import require_device

    require_device()
    run = load(args.workdir, args.checkpoint, args.average, args.modules, base=args.base)
    longest = getattr(args, "max_length", None)
    run = run.under(dict.fromkeys(LENGTHS, longest)) if longest else run
    patches = getattr(args, "patch", None)
    return run.patched(dict(patches)) if patches else run


def add_patches(parser: argparse.ArgumentParser) -> None:
    """Parts of the model switched off or scaled."""
    parser.add_argument(
        "--patch",
        type=patch,
        action="append",
        metavar="PLACE=X",
        help="scale what stands at a place of the model, 0 switches it off, such as "
        "decoder.layer_1.cross_attention.heads[2]=0; may be given again",
    )


def add_modules(parser: argparse.ArgumentParser) -> None:
    """The user's own modules."""
    parser.add_argument(
        "--modules",
        type=names,
        default=(),
        metavar="FILE_OR_MODULE,...",
        help="your own Python files or importable modules, which register components",
    )


def add_distributed(parser: argparse.ArgumentParser) -> None:
    """How to join the other processes of a job."""
    group = parser.add_argument_group(
        "many processes", "the same command in each; Slurm, Open MPI, Kubernetes and TPUs are asked"
    )
    group.add_argument("--distributed", action="store_true", help="join the job's other processes")
    group.add_argument(
        "--coordinator",
        type=address,
        metavar="HOST:PORT",
        help="of process 0, if not detected",
    )
    group.add_argument("--num_processes", type=positive, metavar="N", help="if not detected")
    group.add_argument("--process_id", type=natural, metavar="I", help="if not detected")


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    """Fields of the section `decode`."""
    for name, kind in DECODE_OPTIONS.items():
        metavar = {float: "X", int: "N", str: "TEXT"}[kind]
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"instead of the config's decode.{name}"
        )


# FOLDED cli.one_line_parser: argparse with errors of one line.


PROGRAM = "python -m transformer_jax"
OVERRIDE = "--config."


class OneLineParser(argparse.ArgumentParser):
    """Raises its errors, without the usage text, and takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def print_help(self, file: Any = None) -> None:
        """As every result: a stdout that takes nothing is an error, too."""
        terminal.write(self.format_help())
        terminal.flush()

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix(PROGRAM).strip()
        raise UserError(f"{verb}: {message}" if verb else message)


type Verbs = argparse._SubParsersAction[OneLineParser]
"""What `add_subparsers` returns: the verbs are added to it."""
