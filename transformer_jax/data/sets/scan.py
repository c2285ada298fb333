# SPDX-License-Identifier: Apache-2.0
"""SCAN: navigation commands and their sequences of actions.

Lake and Baroni 2018, "Generalization without Systematicity". Three divisions into training and
test: "simple" is random, "length" has longer outputs in the test, and in "addprim_jump" training
contains "jump" only as a command of its own. There is no validation split: every 20th training
example is held out for it.
"""

import re
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.sets.download import PublicSet, RemoteFile
from transformer_jax.errors import UserError

_URL = (
    "https://raw.githubusercontent.com/brendenlake/SCAN/c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f/"
)
_PERIOD = 20  # one of 20 training examples is for validation

SETS = {
    "scan_simple": ("simple_split", "simple"),
    "scan_length": ("length_split", "length"),
    "scan_addprim_jump": ("add_prim_split", "addprim_jump"),
}
"""Name -> folder and end of the file name in the public repository."""

_PINS = {  # size in bytes and SHA-256
    "tasks_test_addprim_jump.txt": (
        1531555,
        "8147ae2651422c701162e174d9d66158daa57858a26b30317ac61797118ac7a5",
    ),
    "tasks_test_length.txt": (
        1356970,
        "0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3",
    ),
    "tasks_test_simple.txt": (
        812450,
        "1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6",
    ),
    "tasks_train_addprim_jump.txt": (
        2579619,
        "e3c78485692e028eed4205e1b8b3fd0e785ef2c12d45b5b89204dadf5b239e23",
    ),
    "tasks_train_length.txt": (
        2723418,
        "b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2",
    ),
    "tasks_train_simple.txt": (
        3267938,
        "941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd",
    ),
}

SCAN = PublicSet(
    name="scan",
    files={
        f"tasks_{part}_{end}.txt": RemoteFile(
            f"{_URL}{folder}/tasks_{part}_{end}.txt", *_PINS[f"tasks_{part}_{end}.txt"]
        )
        for folder, end in SETS.values()
        for part in ("train", "test")
    },
)

_LINE = re.compile(r"IN: (.*?) OUT: (.*)")


def open_split(config: DataConfig, split: str, name: str) -> Sequence[Corpus]:
    """Opens a split of a set (a key of `SETS`) as one corpus.

    Raises:
      UserError: its file is missing, or a line is not of the form "IN: ... OUT: ...".
    """
    part = "test" if split == "test" else "train"
    lines = TextLines(SCAN.path(f"tasks_{part}_{SETS[name][1]}.txt", config.dir))
    for i, line in enumerate(lines):
        try:
            _parse(line)
        except ValueError as error:
            raise UserError(f"{lines.path}, line {i + 1}: {error}") from error
    examples = Parsed(lines, _parse)
    if split == "test":
        return [examples]
    held_out = np.arange(len(lines)) % _PERIOD == 0
    return [Selection(examples, np.flatnonzero(held_out if split == "valid" else ~held_out))]


def _parse(line: str) -> Example:
    """Example of a line; ValueError if it has another form."""
    match = _LINE.fullmatch(line.strip())
    if not match:
        raise ValueError('not "IN: command OUT: actions"')
    return {"source": match[1], "target": match[2]}
