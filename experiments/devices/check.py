# SPDX-License-Identifier: Apache-2.0
"""A part of a check, its results, and the process that it runs in."""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"


@dataclasses.dataclass(frozen=True)
class Check:
    """One part of a check.

    Attributes:
      part: name of the part.
      out: folder of the results.
      tokenizer: folder of the tokenizer for base; trained there if it does not exist.
      dry: tiny sizes, to see on a CPU that everything works.
    """

    part: str
    out: Path
    tokenizer: Path
    dry: bool

    @property
    def log(self) -> Path:
        """File of what the part prints."""
        return self.out / f"{self.part}.log"

    def record(self, label: str, /, **values: Any) -> None:
        """Writes a result at once: a line in results.jsonl and on stdout. `ok=False` is a failure
        of the whole check."""
        rounded = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in values.items()
        }
        line = json.dumps({"part": self.part, "label": label} | rounded)
        with (self.out / RESULTS).open("a") as file:
            file.write(f"{line}\n")
        print(line, flush=True)

    @contextlib.contextmanager
    def attempt(self, label: str) -> Iterator[None]:
        """Context that records an error as the result, so that the rest of the part still runs."""
        try:
            yield
        except Exception as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            self.record(label, ok=False, error=message[:200])


def run_here(check: Check) -> None:
    """Runs a part in this process, as the leader of a group of processes."""
    os.setsid()
    log = os.open(check.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    importlib.import_module(f"experiments.devices.parts.{check.part}").run(check)
