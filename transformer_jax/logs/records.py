"""metrics.jsonl: the records of a run, one strict JSON object per line, in order of writing."""

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transformer_jax.runtime.files import (
    RECORDS_BYTES,
    SETTINGS_BYTES,
    atomic_writer,
    open_regular,
    open_to_append,
)

logger = logging.getLogger(__name__)


def to_json(record: Mapping[str, Any]) -> str:
    """Formats a record as a line of strict JSON. Array scalars become numbers, and numbers that are
    not finite become null."""
    return json.dumps(_strict(record), ensure_ascii=False, allow_nan=False)


@runtime_checkable
class ArrayScalar(Protocol):
    """A NumPy number, or an array of NumPy or JAX without dimensions."""

    def item(self) -> Any:
        """Converts to a Python number."""


def to_python(value: Any) -> Any:
    """Converts an array scalar to a Python number; returns other values unchanged."""
    return value.item() if isinstance(value, ArrayScalar) else value


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    plain = to_python(value)
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


class RecordFile:
    """Appends records to a file of JSON lines.

    Opening it drops the records after `last_step`, which a resumed run writes again, and a last
    line that a kill left incomplete. The file is replaced atomically: a kill while opening loses
    nothing. A record of `last_step` that exists already is not written again.
    """

    def __init__(self, path: Path, *, last_step: int):
        _drop_after(path, last_step)
        self._existing = {(last_step, split) for split in recorded_splits(path, last_step)}
        self._file = open_to_append(path)  # line-buffered: each record is visible at once

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record."""
        if (record["step"], record["split"]) not in self._existing:
            self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()


def last_recorded_step(path: Path) -> int:
    """Highest step among the records; 0 if there are none."""
    return max(map(_step, read_lines(path)), default=0)


def recorded_splits(path: Path, step: int) -> set[str]:
    """Splits that have a record of this step."""
    records = (json.loads(line) for line in read_lines(path) if _step(line) == step)
    return {str(record.get("split")) for record in records}


def read_records(path: Path, split: str, last_step: int) -> Iterator[dict[str, Any]]:
    """Reads the records of a split up to a step."""
    for line in read_lines(path):
        if 0 < _step(line) <= last_step and (record := json.loads(line)).get("split") == split:
            yield record


def read_lines(path: Path) -> Iterator[bytes]:
    """Reads the lines of a file of records; none if the file does not exist.

    A line that is too long for a record comes in pieces.

    Raises:
      OSError: the file cannot be read (`files.open_regular`).
    """
    if not os.path.lexists(path):
        return
    with open_regular(path, RECORDS_BYTES) as file:
        while line := file.readline(SETTINGS_BYTES):
            yield line


def _drop_after(path: Path, last_step: int) -> None:
    lines = list(read_lines(path))
    kept = [line for line in lines if 0 < _step(line) <= last_step]
    if len(kept) == len(lines):
        return
    logger.info("%s: %d lines after step %d dropped", path, len(lines) - len(kept), last_step)
    with atomic_writer(path) as file:
        file.writelines(kept)


def _step(line: bytes) -> int:
    """Step of a record; 0 if the line is incomplete or no record."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else 0
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0
