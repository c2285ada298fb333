# SPDX-License-Identifier: Apache-2.0
"""Flags and verbs of the command line, types of values, and the flags that several verbs share."""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SCRIPT = "transformer_jax"
PROGRAM = (
    _SCRIPT if [Path(word).name for word in sys.argv[:1]] == [_SCRIPT] else f"python -m {_SCRIPT}"
)
"""How this process was called: as the console script, or as a module."""
OVERRIDE = "--config."
"""Prefix of a flag that sets a field of the config."""
ANY_FIELD = ".*"
"""Pattern of the fields that a verb with a config may set."""
SEARCH_OPTION = r"decode\.\w+\."
"""Pattern of the fields that a verb with a trained run may set: decode.SEARCH.OPTION."""
DATA_OPTION = r"data\."
"""Pattern of the fields of data, which may have to be repeated if only a loaded config has them."""
GROUPS = {"benchmark": "Times a config's training step or search; prints one JSON object."}
"""First words of verbs of two words."""

_NAMES = ("search", "length_penalty", "stop", "draft", "weights")
_COUNTS = ("beam_size", "top_k", "seed", "max_extra_length", "batch_size", "draft_length")
_NUMBERS = ("alpha", "temperature", "top_p", "repetition_penalty")
DECODE_OPTIONS: dict[str, type] = (
    dict.fromkeys(_NAMES, str) | dict.fromkeys(_COUNTS, int) | dict.fromkeys(_NUMBERS, float)
)
"""Flags that replace fields of the config's section `decode`, with their types."""


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Type of a whole number from `least` to `most`."""

    def read(text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return number

    return read


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
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not latest, best or the number of a step")


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
            f"{text!r} is not HOOK_POINT=X, as in encoder.layer_0.self_attention.heads[1]=0"
        )
    return point, scale


_TYPES: dict[str, Callable[[str], Any]] = {
    "N": whole_number(1),
    "K": whole_number(1),
    "I": whole_number(0),
    "COUNT": whole_number(1, 1000),  # they train together, and are in memory at once
    "INT": int,
    "FLOAT": float,
    "REGEX": regular_expression,
    "latest|best|STEP": checkpoint_choice,
    "HOST:PORT": host_and_port,
    "FILE_OR_MODULE,...": comma_separated,
    "HOOK_POINT=X": patch,
}
"""What stands for a value in a flag's spelling -> its type; others are texts."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a verb, or a word without a flag.

    Attributes:
      spelling: as in the help: "--workdir DIR", "--format text|json" with its choices, "--stream"
        for a switch, "pattern [TEXT]" for one word or none, "runs RUN..." for any number of words.
      many: the flag may be repeated; its value is a list.
      excludes: names of flags that would have no effect beside this one.
      goes_with: name of the flag without which this one would have no effect.
    """

    spelling: str
    help: str = ""
    default: Any = None
    many: bool = False
    excludes: Sequence[str] = ()
    goes_with: str = ""

    @property
    def name(self) -> str:
        """The attribute of the parsed arguments."""
        return self.spelling.partition(" ")[0].removeprefix("--")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Adds the flag to a verb's parser."""
        spelling, _, metavar = self.spelling.partition(" ")
        if not metavar:
            parser.add_argument(spelling, action="store_true", help=self.help)
            return
        is_word = not spelling.startswith("--")
        parser.add_argument(
            spelling,
            metavar=metavar.strip("[].") if is_word else metavar,
            nargs={"]": "?", ".": "*"}.get(metavar[-1]) if is_word else None,
            action="append" if self.many else "store",
            type=_TYPES.get(metavar, str),
            default=self.default,
            choices=metavar.split("|") if metavar.islower() else None,
            help=self.help,
        )

    def is_given(self, args: argparse.Namespace) -> bool:
        """Returns True if the command line sets another value than the default."""
        value = getattr(args, self.name)
        return value is not None and value is not False and value != self.default


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line. Its help is the docstring of `run`.

    Attributes:
      requires: names of flags that must be given, each with alternatives as in "workdir|dry_run".
      overrides: pattern of the fields that `--config.FIELD=VALUE` may set; "" for none.
    """

    name: str
    run: Callable[[argparse.Namespace], int | None]
    flags: dict[str, Flag]
    requires: Sequence[str]
    overrides: str


VERBS: dict[str, Verb] = {}
"""The verbs by name, which may be two words; `verb` adds them."""


def verb[Run: Callable[[argparse.Namespace], int | None]](
    *flags: Flag, requires: Sequence[str] = (), overrides: str | None = None
) -> Callable[[Run], Run]:
    """Decorator of the function that runs a verb.

    The function's name is the verb's: `import_` that of `import`, `a_b` that of `a b`.

    Args:
      requires: as of `Verb`.
      overrides: as of `Verb`; None: any field with --config, options of a search with --search.
    """
    by_name = {flag.name: flag for flag in (*flags, _TRACEBACK)}
    if overrides is None:
        with_run = SEARCH_OPTION if "search" in by_name else ""
        overrides = ANY_FIELD if "config" in by_name else with_run

    def register(run: Run) -> Run:
        name = run.__name__.rstrip("_").replace("_", " ")
        VERBS[name] = Verb(name, run, by_name, requires, overrides)
        return run

    return register


_TRACEBACK = Flag("--traceback", "with an error, also print where in the code it was raised")
MODULES = Flag(
    "--modules FILE_OR_MODULE,...",
    "your own Python files or importable modules, which register components",
    default=(),
)
CONFIG = Flag(
    "--config FILE", "the experiment: a file, or the name of a shipped config, such as quickstart"
)
BASE = Flag(
    "--base RUN",
    "the base run of a LoRA run, or the reference run of preference training, instead of the "
    "config's train.init_from; needed if that is an address or another user's folder",
)
RUN = (
    Flag("--workdir DIR", "the run's directory"),
    Flag("--checkpoint latest|best|STEP", "which parameters to use (default: latest)", "latest"),
    Flag("--average K", "average the last K parameter snapshots"),
    BASE,
    MODULES,
)
"""Flags that `verbs.load_run` reads."""
RUNS = (
    Flag(
        "--workdir DIR[,DIR...]",
        "the run's directory; several, with commas between, predict together, as an ensemble",
    ),
    *RUN[1:],
)
"""`RUN` for verbs that take ensembles, too."""
MAX_LENGTH = Flag("--max_length N", "longest sequence, instead of the length in training")
PATCH = Flag(
    "--patch HOOK_POINT=X",
    "scale the activations at a hook point of the model (0 switches it off), such as "
    "decoder.layer_1.cross_attention.heads[2]=0; may be repeated",
    many=True,
)
DECODE = tuple(
    Flag(f"--{name} {kind.__name__.upper()}", f"instead of the config's decode.{name}")
    for name, kind in DECODE_OPTIONS.items()
)
PROCESSES = (
    Flag(
        "--distributed",
        "join the other processes of a job, which run the same command; Slurm, Open MPI, "
        "Kubernetes and TPUs are detected",
    ),
    Flag("--coordinator HOST:PORT", "of process 0, if not detected", goes_with="distributed"),
    Flag("--num_processes N", "if not detected", goes_with="distributed"),
    Flag("--process_id I", "if not detected", goes_with="distributed"),
)
"""Flags of a process that joins a job."""
