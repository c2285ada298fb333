# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl: the records of a run, one strict JSON object per line, in order of writing."""

import contextlib
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.runtime.files import open_regular, open_to_append, parse_json

logger = logging.getLogger(__name__)

DIGEST = "sha256"
"""Field of a line: digest of the line and, by the digest of the line before, of all before."""
RESUMED = "resumed"
"""Field of the first record of a start of the run: the step that it continues from."""
CHECKPOINT = "checkpoint"
"""Field of a record: the newest checkpoint on disk, by its digest."""
OF_AUDIT = ("batches", CHECKPOINT, RESUMED, DIGEST)
"""Fields by which an audit checks a run."""
OF_ONE_TRAINING = re.compile(
    rf"share_|seconds|step_ms|per_s$|goodput|mfu|time|{DIGEST}|{RESUMED}|{CHECKPOINT}"
)
"""In names of values that another training of the same config does not repeat."""


def to_json(record: Mapping[str, Any], digits: int | None = None) -> str:
    """Formats a record as a line of strict JSON.

    Array scalars become numbers, and numbers that are not finite become null. Fractional numbers
    keep `digits` significant digits; None: all.
    """
    return json.dumps(_strict(record, digits), ensure_ascii=False, allow_nan=False)


def to_python(value: Any) -> Any:
    """Converts an array without dimensions, of NumPy or JAX, to a Python number; returns other
    values unchanged."""
    return value.item() if hasattr(value, "item") else value


def _strict(value: Any, digits: int | None) -> Any:
    if isinstance(value, Mapping):
        return {name: _strict(member, digits) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(element, digits) for element in value]
    plain = to_python(value)
    if not isinstance(plain, float):
        return plain
    if not math.isfinite(plain):
        return None
    if digits is None:
        return plain
    return round(plain) if abs(plain) >= 10**digits else float(f"{plain:.{digits}g}")


class RecordFile:
    """Appends records to a file of JSON lines.

    Opening it drops the records after `last_step`, which a resumed run writes again, and a last
    line that a kill left incomplete. The file is cut in one call: a kill while opening loses
    nothing else. A record of `last_step` that exists already is not written again. Records are
    chained (`read_chain`).
    """

    def __init__(self, path: Path, *, last_step: int):
        self._file = open_to_append(path)  # line-buffered: each record is visible at once
        before = path.stat().st_size
        size = 0
        self._digest = ""  # of the last line
        self._existing: set[tuple[int, str]] = set()
        for end, record in _records(path):
            if record["step"] <= last_step:
                size = end
                self._digest = str(record.get(DIGEST, ""))
            if record["step"] == last_step:
                self._existing.add((last_step, str(record.get("split"))))
        if size < before:
            logger.info("%s: what is after step %d is dropped", path, last_step)
        self._file.truncate(size)
        self._resumed = {RESUMED: last_step} if last_step else {}

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record."""
        if (record["step"], record["split"]) in self._existing:
            return
        line = chained({**record, **self._resumed}, self._digest)
        self._resumed = {}
        self._digest = line[DIGEST]
        self._file.write(to_json(line) + "\n")

    def close(self) -> None:
        self._file.close()


def chained(record: Mapping[str, Any], before: str) -> dict[str, Any]:
    """A record as it will be read, with its digest, after a line with the digest `before`."""
    line = json.loads(to_json(record))  # lists for tuples, null for NaN
    return {**line, DIGEST: _line_digest(line, before)}


def _line_digest(line: Mapping[str, Any], before: str) -> str:
    return hashlib.sha256(f"{before}\n{to_json(line)}".encode()).hexdigest()


def read_chain(path: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The chained lines of a file, and what is wrong with their digests.

    A line that was edited, removed, put in or moved is found; whoever computes all digests again is
    not.

    Raises:
      OSError: the file cannot be read.
    """
    lines: list[Mapping[str, Any]] = []
    faults = []
    before = ""
    for number, text in enumerate(read_lines(path), 1):
        if not text.endswith(b"\n"):
            break  # a kill has torn it
        try:
            line = parse_json(text)
            record = {name: value for name, value in line.items() if name != DIGEST}
            is_chained = line[DIGEST] == _line_digest(record, before)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            faults.append(f"line {number} has no digest")
            continue
        if not is_chained:
            faults.append(f"line {number} or the one before it was altered or moved")
        before = line[DIGEST]
        lines.append(line)
    return lines, faults


def last_recorded_step(path: Path) -> int:
    """Step of the last record; 0 if there are none."""
    steps = [record["step"] for _, record in _records(path)]
    return steps[-1] if steps else 0


def read_records(path: Path, split: str, last_step: int) -> list[dict[str, Any]]:
    """Reads the records of a split up to a step."""
    records = [record for _, record in _records(path) if record["step"] <= last_step]
    return [record for record in records if record.get("split") == split]


def with_losses(record: dict[str, Any], train: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose "loss" is that of the data, also if an earlier version wrote it.

    That version called "loss" what training minimizes. Where this is more than the cross-entropy of
    the data, it becomes "train_loss", and the loss follows from the perplexity, if there is one.

    Args:
      train: the section `train` of the run's config.
    """
    has_terms = any(train.get(name) for name in ("label_smoothing", "z_loss", "r_drop"))
    is_other_loss = train.get("loss", "cross_entropy") != "cross_entropy"
    if "train_loss" in record or not (has_terms or is_other_loss):
        return record
    record = dict(record)
    for name in [name for name in record if name == "loss" or name.endswith("/loss")]:
        of_split = name.removesuffix("loss")
        record[f"{of_split}train_loss"] = record.pop(name)
        perplexity = record.get(f"{of_split}perplexity")
        if perplexity is not None:
            record[name] = math.log(perplexity)
    return record


def read_lines(path: Path) -> Iterator[bytes]:
    """Reads the lines of a file of records; none if the file does not exist.

    Raises:
      OSError: the file cannot be read (`files.open_regular`).
    """
    if not os.path.lexists(path):
        return
    with open_regular(path) as file:
        yield from file


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields whole records, without lines that a kill has torn, and the bytes up to their ends."""
    size = 0
    for line in read_lines(path):
        size += len(line)
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            record = parse_json(line)
            step = record.get("step")
            if isinstance(step, int) and step > 0 and line.endswith(b"\n"):
                yield size, record
