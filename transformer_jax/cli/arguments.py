# SPDX-License-Identifier: Apache-2.0
"""Flags that several verbs share, the types of their values, and a parser with one-line errors."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_jax.cli import terminal
from transformer_jax.errors import UserError

_SCRIPT = "transformer_jax"
PROGRAM = (
    _SCRIPT if [Path(word).name for word in sys.argv[:1]] == [_SCRIPT] else f"python -m {_SCRIPT}"
)
"""How this process was called: as the console script, or as a module."""
OVERRIDE = "--config."
"""Prefix of a flag that sets a field of the config."""

BENCHMARK_SIZES = {
    "train": ("batch_size", "source_length", "target_length", "steps"),
    "decode": ("batch_size", "source_length", "beam_size", "output_length", "steps"),
}
"""Flags of `benchmark` for the sizes that are measured."""

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
    "draft": str,
    "draft_length": int,
    "weights": str,
}
"""Flags that replace fields of the config's section `decode`, with their types."""

_MAX_DIGITS = 19  # 2^63 has 19 digits
_MAX_SEEDS = 1000
_MAX_INT32 = 2**31 - 1  # sizes of arrays are int32


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises UserError without the usage text.

    Flags cannot be abbreviated.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def print_help(self, file: Any = None) -> None:
        """Prints the help text to stdout; raises UserError if stdout cannot be written."""
        terminal.write(self.format_help())
        terminal.flush()

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix(PROGRAM).strip()
        raise UserError(f"{verb}: {message}" if verb else message)


class PrintVersion(argparse.Action):
    """Flag that prints the versions of the package, of jax and of Python, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, *_: Any) -> NoReturn:
        from importlib.metadata import version

        python = ".".join(map(str, sys.version_info[:3]))
        package = version("transformer_jax")
        terminal.write(f"transformer_jax {package} (jax {version('jax')}, Python {python})\n")
        terminal.flush()
        sys.exit(0)


type Verbs = argparse._SubParsersAction[OneLineParser]
"""The result of `add_subparsers`, to which verbs are added."""


def positive_int(text: str) -> int:
    """A whole number from 1 to 2^31 - 1."""
    number = _whole_number(text)
    if not 1 <= number <= _MAX_INT32:
        raise argparse.ArgumentTypeError(
            f"{_shortened(text)} is not a positive whole number below 2^31"
        )
    return number


def natural_int(text: str) -> int:
    """A whole number from 0 to 2^31 - 1."""
    number = _whole_number(text)
    if not 0 <= number <= _MAX_INT32:
        raise argparse.ArgumentTypeError(
            f"{_shortened(text)} is not a whole number from 0 to 2^31 - 1"
        )
    return number


def seed_count(text: str) -> int:
    """A number of seeds to train together, which are all in memory at once."""
    number = positive_int(text)
    if number > _MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"{number} seeds; at most {_MAX_SEEDS} train together")
    return number


def regular_expression(text: str) -> str:
    """A regular expression that compiles."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def checkpoint_choice(text: str) -> str | int:
    """latest, best or the number of a step."""
    if text in ("latest", "best"):
        return text
    step = _whole_number(text)
    if step < 0:
        raise argparse.ArgumentTypeError(
            f"{_shortened(text)} is not latest, best or the number of a step"
        )
    return step


def host_and_port(text: str) -> str:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 10.0.0.1:1234")
    return text


def comma_separated(text: str) -> list[str]:
    """Names separated by commas."""
    return [name for name in text.split(",") if name]


def patch(text: str) -> tuple[str, float]:
    """HOOK_POINT=X: the name of a hook point and a finite number."""
    point, _, number = text.rpartition("=")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not point or not math.isfinite(scale):
        raise argparse.ArgumentTypeError(
            f"{_shortened(text)} is not HOOK_POINT=X, as in "
            "encoder.layer_0.self_attention.heads[1]=0"
        )
    return point, scale


def _whole_number(text: str) -> int:
    """The number; -1 if the text is no whole number or has too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else -1


def _shortened(text: str) -> str:
    """A value as messages quote it, at most 60 characters of it."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the experiment: a file, or the name of a shipped config, such as quickstart",
    )


def add_run_flags(parser: argparse.ArgumentParser, ensembles: bool = False) -> None:
    """Adds the flags that `verbs.load_run` reads: a trained run, its checkpoint and base run.

    With `ensembles`, the verb also takes several runs.
    """
    workdir_help = "the run's directory"
    if ensembles:
        workdir_help += "; several, with commas between, predict together, as an ensemble"
    parser.add_argument(
        "--workdir", metavar="DIR[,DIR...]" if ensembles else "DIR", help=workdir_help
    )
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_choice,
        default="latest",
        metavar="latest|best|STEP",
        help="which parameters to use (default: latest)",
    )
    parser.add_argument(
        "--average", type=positive_int, metavar="K", help="average the last K parameter snapshots"
    )
    add_base_flag(parser)
    add_modules_flag(parser)


def add_base_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --base."""
    parser.add_argument(
        "--base",
        metavar="RUN",
        help="the base run of a LoRA run, or the reference run of preference training, instead of "
        "the config's train.init_from; needed if that is an address or another user's folder",
    )


def add_max_length_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --max_length."""
    parser.add_argument(
        "--max_length",
        type=positive_int,
        metavar="N",
        help="longest sequence, instead of the length in training",
    )


def add_escape_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --escape."""
    parser.add_argument(
        "--escape",
        action="store_true",
        help=r"read \\ in a line as a backslash, \n as a line feed, \r as a carriage return: an "
        "example can have several lines",
    )


def add_patch_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --patch."""
    parser.add_argument(
        "--patch",
        type=patch,
        action="append",
        metavar="HOOK_POINT=X",
        help="scale the activations at a hook point of the model (0 switches it off), such as "
        "decoder.layer_1.cross_attention.heads[2]=0; may be repeated",
    )


def add_modules_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --modules."""
    parser.add_argument(
        "--modules",
        type=comma_separated,
        default=(),
        metavar="FILE_OR_MODULE,...",
        help="your own Python files or importable modules, which register components",
    )


def add_distributed_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a process that joins a job: --distributed, --coordinator and so on."""
    group = parser.add_argument_group(
        "many processes",
        "run the same command in each process; Slurm, Open MPI, Kubernetes and TPUs are detected",
    )
    group.add_argument("--distributed", action="store_true", help="join the job's other processes")
    group.add_argument(
        "--coordinator",
        type=host_and_port,
        metavar="HOST:PORT",
        help="of process 0, if not detected",
    )
    group.add_argument("--num_processes", type=positive_int, metavar="N", help="if not detected")
    group.add_argument("--process_id", type=natural_int, metavar="I", help="if not detected")


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each of `DECODE_OPTIONS`."""
    for name, kind in DECODE_OPTIONS.items():
        metavar = {float: "X", int: "N", str: "TEXT"}[kind]
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"instead of the config's decode.{name}"
        )
