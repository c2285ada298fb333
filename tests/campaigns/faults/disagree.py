# SPDX-License-Identifier: Apache-2.0
"""Tests that processes of a job detect disagreements before they start.

    python tests/campaigns/faults/disagree.py --workdir=runs/disagree --cases=60

Each case starts two processes of one job, with two devices each, on this machine. They differ in
one field of the config, in the data, the user's module, the code, a flag of JAX, the number of
processes or the output folder. If the field may differ (`runs.provenance.MAY_DIFFER`), both must
succeed. Otherwise both must exit with status 2 and one line that names the difference, before
anything but a marker file is written. Prints one JSON object; exit status 1 if a case ended
otherwise.
"""

import argparse
import dataclasses
import os
import random
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tiny_runs
from campaign import Case, Command, Ended, report, run

REPOSITORY = Path(__file__).parents[3]
CONFIG = REPOSITORY / "configs/quickstart.py"
DEVICES = "--xla_force_host_platform_device_count={} --xla_backend_optimization_level=0"
# Programs of oneDNN cannot be cached.
DEVICES += " --xla_disable_hlo_passes=onednn-contraction-rewriter,onednn-ops-rewriter"
FIELDS_OF_ALL = tiny_runs.SMALL | tiny_runs.TWO_STACKS
FIELDS_OF_ALL |= {"tokenizer.vocab_size": 40, "data.name": "parallel_text"}
FIELDS_OF_ALL |= {"train.num_steps": 2, "train.tokens_per_batch": 384}
FIELDS_OF_ALL |= {f"data.{split}_source": "a.en" for split in ("train", "valid")}
FIELDS_OF_ALL |= {f"data.{split}_target": "a.de" for split in ("train", "valid")}
OTHERS: dict[str, Any] = {
    "data.dir": "elsewhere",
    "data.num_workers": 1,
    "model.layers": "qk_norm=true",
    "optimizer.frozen": "embedding",
    "task.metric": "exact_match",
    "train.init_from": "run",
}
"""Other values of fields that say no other by their type or registry."""
MODULE = """
from transformer_jax.nn.feed_forward import ACTIVATIONS

ACTIVATIONS.register("mine", lambda x: {} * x)
"""
WITH_MODULE = ("--modules=mine.py", "--config.model.activation=mine")
ELSEWHERE = "elsewhere"
"""Folder of a second process with its own files; initially a copy of the first one's."""


@dataclasses.dataclass(frozen=True)
class Process:
    """Settings of one process of a job: arguments, numbers, variables, folder."""

    words: tuple[str, ...] = ()
    verb: str = "train"
    processes: int = 2
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: str = "."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="holds the cases' folders")
    parser.add_argument("--cases", type=int, default=60, help="the special ones, and fields drawn")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of cases")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    named = re.compile(args.only).search
    special = [case for case in special_cases() if named(case.name)]
    fields = [case for case in field_cases() if named(case.name)]
    count = max(0, min(args.cases - len(special), len(fields)))
    cases = [*special, *random.Random(args.seed).sample(fields, count)]
    return report(run(cases[: args.cases], args.workdir), sys.stderr)


def field_cases() -> Iterator[Case]:
    """One case per config field."""
    from transformer_jax.runs.config import load_config
    from transformer_jax.runs.provenance import MAY_DIFFER
    from transformer_jax.runs.settings import CHOICES, FIELDS

    config = load_config(CONFIG, FIELDS_OF_ALL)
    for name, field in FIELDS.items():
        section, _, own = name.partition(".")
        value = config[section][own] if own else config[section]
        if name in CHOICES and {*CHOICES[name]} <= {value}:
            continue  # only entries of the user's own would be another value
        words = (f"--config.{name}={another(name, value, field.type)}",)
        if MAY_DIFFER.fullmatch(name) and name != "data.dir":  # which `parallel_text` refuses
            dry = ("--dry_run",)
            yield job(name, "", Process(dry), Process(dry + words))
        else:
            yield job(name, own or section, Process(), Process(words))


def another(name: str, value: Any, kind: type) -> Any:
    """Another value of the field."""
    from transformer_jax.runs.settings import CHOICES

    if name in OTHERS:
        return OTHERS[name]
    if name in CHOICES:
        return next(choice for choice in CHOICES[name] if choice != value)
    if kind is bool:
        return not value
    if kind is str:
        return f"{value}2"
    return (value or 1) + 1 if kind is int else (value or 0.125) / 2


def special_cases() -> Iterator[Case]:
    """Cases of other differences between two processes."""
    one, moved = Process(), Process(folder=ELSEWHERE)
    yield job("nothing", "", Process(("--dry_run",)), Process(("--dry_run",)))
    yield job("a line of a file", "training data", one, moved, other_line)
    yield job("no file", "process 1: cannot read", one, moved, partial(missing, "a.de"))
    yield job("workdir", "is not the folder that process 0 writes", one, moved)
    mine, theirs = Process(WITH_MODULE), Process(WITH_MODULE, folder=ELSEWHERE)
    yield job("module", "module mine.py is", mine, theirs, other_module)
    unread = "process 1: modules: cannot read"
    yield job("no module", unread, mine, theirs, partial(missing, "mine.py"))
    code = Process(environ={"PYTHONPATH": "code"})
    yield job("code", "code is", one, code, other_code, fresh=True)
    wide = Process(environ={"JAX_ENABLE_X64": "1"})
    yield job("types", "jax_enable_x64", one, wide, fresh=True)
    yield job("devices", "XLA_FLAGS", one, Process(environ={"XLA_FLAGS": DEVICES.format(1)}))
    yield job("verb", "process 1: ", one, Process(verb="evaluate"))
    yield job("a flag", "--dry_run", one, Process(("--dry_run",)))
    yield job("processes", "process 1 is one of 3 processes", one, Process(processes=3))
    misspelt = Process(("--config.model.d_modle=3",))
    yield job("no field", "did you mean config.model.d_model", one, misspelt)


def job(
    name: str,
    told: str,
    first: Process,
    second: Process,
    prepare: Callable[[Path], object] = bool,
    fresh: bool = False,
) -> Case:
    """Case of two processes, with the text that both must print; none if they may differ."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    commands = [command(one, i, address, fresh) for i, one in enumerate((first, second))]

    def fill(folder: Path) -> None:
        for place in (folder, folder / ELSEWHERE):
            tiny_runs.write_texts(place)
            (place / "mine.py").write_text(MODULE.format(2))
        prepare(folder)

    def check(folder: Path, ended: list[Ended]) -> list[str]:
        return wrong(folder, ended, told)

    return Case(name, commands, fill, frozenset({2 if told else 0}), check)


def command(process: Process, number: int, address: str, fresh: bool) -> Command:
    """Command line of one process."""
    words = [process.verb, "--workdir=run", "--distributed", f"--coordinator={address}"]
    words += [f"--num_processes={process.processes}", f"--process_id={number}"]
    if process.verb == "train":
        fields = [f"--config.{name}={value}" for name, value in FIELDS_OF_ALL.items()]
        words += [f"--config={CONFIG}", *fields]
    environ = {"XLA_FLAGS": DEVICES.format(2)} | dict(process.environ)
    go = partial(os.chdir, process.folder)
    return Command([*words, *process.words], environ=environ, fresh=fresh, before=go)


def wrong(folder: Path, ended: list[Ended], told: str) -> list[str]:
    """Returns what is wrong with the ends of two processes that had to print this text, if
    anything."""
    if not told:
        return []
    errors = [line for one in ended for line in one.stderr.splitlines() if line.startswith("error")]
    found = [f"told otherwise: {line}" for line in errors if told not in line]
    if len(set(errors)) > 1:
        found.append(f"told differently: {errors}")
    for workdir in (folder / "run", folder / ELSEWHERE / "run"):
        written = {path.name for path in workdir.glob("*")} - {".transformer_jax"}
        found += [f"written: {name}" for name in sorted(written)]
    return found


def missing(name: str, folder: Path) -> None:
    (folder / ELSEWHERE / name).unlink()


def other_line(folder: Path) -> None:
    path = folder / ELSEWHERE / "a.de"
    path.write_text("Anders .\n" + path.read_text().partition("\n")[2])


def other_module(folder: Path) -> None:
    (folder / ELSEWHERE / "mine.py").write_text(MODULE.format(3))


def other_code(folder: Path) -> None:
    copy = shutil.copytree(REPOSITORY / "transformer_jax", folder / "code" / "transformer_jax")
    with (copy / "losses.py").open("a") as file:
        file.write("# edited\n")


if __name__ == "__main__":
    sys.exit(main())
