# SPDX-License-Identifier: Apache-2.0
"""Fuzzes config values: training must succeed or fail with a one-line error.

    python tests/campaigns/faults/fuzz_config.py --workdir=runs/fuzz_config --cases=2000

Each case trains a tiny config of one of the tasks for two steps, with one to three fields set to
other values: wrong types, bounds of ranges and values just outside, NaN, huge and negative numbers,
choices of other fields, texts that are not paths, nested lists. They are set by flags or in the
config file. The run must finish, or exit with status 2 and one line. `campaign` lists the other
requirements. Prints one JSON object; exit
status 1 if any case ended otherwise.
"""

import itertools
import random
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tiny_runs
from campaign import Case, Command, Ended

from transformer_jax.ranges import OneOf, Range, short_repr
from transformer_jax.runs.settings import CHOICES, FIELDS, SECTIONS, Settings

STEPS = {"train.num_steps": 2, "eval.every_steps": 2, "checkpoint.every_steps": 2}
STEPS |= {"logging.every_steps": 1}
SCORED = ("translation", "classifier", "pair_classifier", "tagger")


split = str.split
NUMBERS = [
    *split("0 1 -1 2 3 7 0.5 1.0 -0.0 1e-300 1e300 1e30 -1e9 nan inf -inf 1e999 1_000 0x10 1e3"),
    *(str(2**power + step) for power in (15, 16, 20, 31, 32, 53, 63, 64) for step in (-1, 0, 1)),
    *(" 5 ", "+4", "\N{ARABIC-INDIC DIGIT THREE}"),
]
TEXTS = [
    *("", " ", "ü\u2028", "🦊"),
    *split("none true False x a,b , | * .. {} ( \\ ' config synthetic_en_de text,text 2,1 1,nan"),
    *split("1e300,1e-300 outside outside/file /dev/null /dev/full /proc/self/mem"),
]
OBJECTS = [
    *split("float('nan') float('inf') -1 10**400 1e999 True None [] [[1]] {} () 1j object() print"),
    *split("range(3) b'x' {'a':1} '\\0' '\\ud800' 'a\\nb' int print"),
    *(f"__import__('numpy').{value}" for value in ("float32('nan')", "int8(3)", "ones(3)")),
]
"""Values in a config file, as Python literals."""

LONGEST = {
    "train.num_steps": 3,
    "train.accumulation_steps": 2,
    "train.rows_per_device": 2,
    "train.tokens_per_batch": 2**16,
    "model.num_layers": 3,
    "model.num_encoder_layers": 3,
    "model.num_decoder_layers": 3,
    "data.num_workers": 2,
    "data.order_seed": 2**31 - 1,
}
"""Largest valid numbers for fields where larger ones would take too long."""


def drawn(texts: Path, number: int) -> Case:
    """Draws the case of a number."""
    draw = random.Random(number)
    task = draw.choice(["translation", *tiny_runs.RUNS])
    fields = tiny_runs.overrides(task, texts) | STEPS
    fields |= {"eval.num_examples": 2} if task in SCORED else {}
    in_file, in_flags = {}, {}
    for name in draw.sample([*FIELDS], draw.choice([1, 1, 1, 2, 3])):
        if draw.random() < 0.3:
            in_file[name] = draw.choice([*OBJECTS, *map(repr, values(name))])
        else:
            in_flags[name] = draw.choice(values(name))
    for name in in_file:
        fields.pop(name, None)
    words = [f"--config.{name}={value}" for name, value in (fields | in_flags).items()]
    words = [word.replace("\0", "") for word in words]
    changed = {name: short_repr(value) for name, value in (in_file | in_flags).items()}
    return Case(
        f"{number}: {task}: {changed}",
        [Command(["train", "--config=config.py", "--workdir=run", *words])],
        prepare=lambda folder: _prepare(folder, task, in_file),
        check=_check,
    )


def values(name: str) -> Sequence[str]:
    """Texts for a field: general ones, and values around its limits."""
    field, limits = FIELDS[name], _limits(name)
    found = [*NUMBERS, *TEXTS] if field.type is str else [*NUMBERS, *NUMBERS, *TEXTS[:8]]
    for limit in limits:
        match limit:
            case Range(least, most):
                step = 1 if field.type is int else 1e-6
                near = [least, least + step, least - step, most, most + step, most - step]
                near += [(least + most) / 2, 3, 2, 0.3]
                found += [str(int(x)) if field.type is int else repr(float(x)) for x in near] * 2
            case OneOf():
                found += list(limit.names) * 9
    others = itertools.chain.from_iterable(CHOICES.values())
    found += [*CHOICES[name]] * 4 if name in CHOICES else [*others] * (field.type is str)
    found += ["true", "false"] * 30 * (field.type is bool)
    return [text for text in found if not _is_more(text, LONGEST.get(name))]


def _is_more(text: str, most: float | None) -> bool:
    try:
        return most is not None and most < float(text) < 2**31
    except ValueError:
        return False


def _limits(name: str) -> tuple[Any, ...]:
    """Annotations of a field's type."""
    section, _, field = name.rpartition(".")
    hint = typing.get_type_hints(SECTIONS.get(section, Settings), include_extras=True)[field]
    hints = [hint, *typing.get_args(hint)]  # of `Size | None`
    return next((one.__metadata__ for one in hints if hasattr(one, "__metadata__")), ())


def _prepare(folder: Path, task: str, fields: Mapping[str, str]) -> None:
    """Writes a config file that extends the task's and sets fields to Python values."""
    (folder / "outside" / "file").write_text("mine\n")
    lines = ["import sys", f"sys.path.insert(0, {str(tiny_runs.CONFIGS)!r})"]
    lines += [f"from {tiny_runs.RUNS[task][0]} import get_config as base", "", "def get_config():"]
    lines += ["    config = base()"]
    for name, value in fields.items():
        section, _, field = name.rpartition(".")
        owner = f"config[{section!r}]" if section else "config"
        lines += [f"    if {section!r} and {section!r} not in config: config[{section!r}] = {{}}"]
        lines += [f"    with config.ignore_type(): {owner}[{field!r}] = {value}"]
    (folder / "config.py").write_text("\n".join([*lines, "    return config", ""]))


def _check(folder: Path, ended: list[Ended]) -> list[str]:
    """Requires of a successful run a checkpoint and no other files."""
    wrong = []
    if ended[0].status == 0 and not (folder / "run" / "checkpoints").is_dir():
        wrong.append("run: no checkpoint")
    known = {"run", "outside", "config.py", "0.in", "0.out", "0.err"}
    strange = {path.name for path in folder.iterdir()} - known
    return wrong + [f"strange: {name}" for name in sorted(strange)]


if __name__ == "__main__":
    sys.exit(tiny_runs.drawn_by_number(__doc__, "texts", tiny_runs.write_texts, drawn))
