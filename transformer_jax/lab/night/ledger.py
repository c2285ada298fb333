# SPDX-License-Identifier: Apache-2.0
"""The ledger of a night: all that happened, a JSON object a line, chained by digests.

Each line has the SHA-256 of the line before it and of itself. A line that was edited, removed or
put in is found; whoever computes all digests again is not. Kinds of lines:

    night     what is tested, and the baseline
    start     a proposal's test begins: its number, level and the baseline that it is tested against
    measured  values of seeds of a row
    end       what became of a proposal: the line that `night` prints
    finish    the winner on fresh seeds and on held-out data
"""

import contextlib
import enum
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.night.definition import Proposal
from transformer_jax.lab.report import with_nan
from transformer_jax.logs.records import DIGEST, chained, read_chain, to_json
from transformer_jax.runtime.files import open_locked

FINISH = "finish"


class Verdict(enum.StrEnum):
    """Verdicts of "end" lines: a proposal is superseded, and tested again, if another was promoted
    while it was tested."""

    PROMOTED = "promoted"
    REFUSED = "refused"
    SUPERSEDED = "superseded"


type Line = Mapping[str, Any]
type Stage = int | str
"""Number of the baseline that rows are measured beside; at the end of a night a name."""


class Ledger:
    """The lines of a ledger, as this process last read them.

    Raises:
      UserError: a line was edited, removed or put in.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.jsonl"
        self._lock = folder / ".ledger.jsonl.lock"  # holds the digest of the last line
        self.lines: list[Line] = []
        self.read()

    def read(self) -> None:
        """Reads what other processes have added."""
        with self.adding():
            pass

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """In the block no other process adds lines, and this one has read them all."""
        with contextlib.closing(open_locked(self._lock, wait=True)) as head:
            content = self.path.read_bytes() if self.path.exists() else b""
            self._size = content.rfind(b"\n") + 1
            self.lines, faults = read_chain(self.path)
            head.seek(0)
            last = head.read()
            # A kill may come between a line and its digest.
            if last and last not in [line[DIGEST] for line in self.lines[-2:]]:
                faults.append("its last lines are missing")
            if faults:
                raise UserError(
                    f"night: {self.path} was edited ({faults[0]}); restore it, or begin another "
                    "night in a new folder"
                )
            self._head = head
            yield

    def add(self, kind: str, **fields: Any) -> Line:
        """Adds a line (within `adding`), and returns it; UserError if the night is finished."""
        self.require_open()
        record = {"line": len(self.lines), "kind": kind, **fields}
        line = chained(record, self.lines[-1][DIGEST] if self.lines else "")
        with self.path.open("ab") as file:
            file.truncate(self._size)  # without a line that a kill has torn
            file.write(f"{to_json(line)}\n".encode())
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        self._head.seek(0)
        self._head.truncate()
        self._head.write(line[DIGEST])
        self._head.flush()
        os.fsync(self._head.fileno())
        self.lines.append(line)
        return line

    def require_open(self) -> None:
        """Raises UserError if the night is finished."""
        if self.of_kind(FINISH):
            raise UserError(
                f"night: {self.path.parent} is finished, as its held-out data were opened; begin "
                "another night in a new folder, with its winner as the baseline"
            )

    def of_kind(self, kind: str) -> list[Line]:
        """The lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def promoted(self) -> list[Line]:
        """The "end" lines of promoted proposals; each made a new baseline."""
        return [line for line in self.of_kind("end") if line["verdict"] == Verdict.PROMOTED]

    def tests(self) -> list[bool | None]:
        """Test number -> True if its proposal was promoted, False if not, None while it runs."""
        outcomes: list[bool | None] = [None] * len(self.of_kind("start"))
        for line in self.of_kind("end"):
            if line["number"] is not None:
                outcomes[line["number"]] = line["verdict"] == Verdict.PROMOTED
        return outcomes

    def start_of(self, proposal: Proposal, baseline: Stage) -> Line | None:
        """The line of a test that has begun and not ended."""
        ended = {line["number"] for line in self.of_kind("end")}
        test = (proposal.name, proposal.digest, baseline)
        for line in self.of_kind("start"):
            is_same = (line["name"], line["digest"], line["baseline"]) == test
            if is_same and line["number"] not in ended:
                return line
        return None

    def decided(self) -> set[tuple[str, str]]:
        """(name, digest) of the proposals that were promoted or refused."""
        ends = self.of_kind("end")
        return {(e["name"], e["digest"]) for e in ends if e["verdict"] != Verdict.SUPERSEDED}

    def measured(self, row: str, baseline: Stage) -> list[Line]:
        """The measurements of a row, beside a baseline, in the order of seeds."""
        lines = self.of_kind("measured")
        return [line for line in lines if (line["row"], line["baseline"]) == (row, baseline)]

    def values(self, row: str, baseline: Stage) -> list[float]:
        """The values of a row's seeds; NaN for one that diverged."""
        lines = self.measured(row, baseline)
        return with_nan([value for line in lines for value in line["values"]])

    def spent(self) -> dict[str, float]:
        """Runs and seconds of training so far."""
        lines = [line for line in self.lines if "spent" in line]
        return {unit: sum(line["spent"][unit] for line in lines) for unit in ("runs", "seconds")}
