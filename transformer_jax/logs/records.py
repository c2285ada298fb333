"""metrics.jsonl: the metrics of a run, one strict JSON object a line, in the order they came."""

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
    """One line of strict JSON: array scalars become numbers, what is not finite becomes null."""
    return json.dumps(_strict(record), ensure_ascii=False, allow_nan=False)


@runtime_checkable
class ArrayScalar(Protocol):
    """A number of NumPy, or an array of NumPy or JAX without dimensions."""

    def item(self) -> Any:
        """The Python number."""


def plain_value(value: Any) -> Any:
    """An `ArrayScalar` as a Python number; anything else as it is."""
    return value.item() if isinstance(value, ArrayScalar) else value


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    plain = plain_value(value)
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


class RecordFile:
    """Appends records to a file of JSON lines.

    Opening it drops the records of steps beyond `last_step`, which a resumed run writes again, and
    a line torn by a kill. The file is replaced atomically: a kill while opening loses nothing.
    A record of `last_step` that is there already is not written again.
    """

    def __init__(self, path: Path, *, last_step: int):
        _drop_after(path, last_step)
        self._there = {(last_step, split) for split in recorded_splits(path, last_step)}
        self._file = open_to_append(path)  # who follows the run sees each record at once

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record, a line of strict JSON."""
        if (record["step"], record["split"]) not in self._there:
            self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()


def newest_step(path: Path) -> int:
    """The last step that a file of records tells of; 0 without any."""
    return max(map(_step, read_lines(path)), default=0)


def recorded_splits(path: Path, step: int) -> set[str]:
    """The splits of which a file of records has one of this step."""
    records = (json.loads(line) for line in read_lines(path) if _step(line) == step)
    return {str(record.get("split")) for record in records}


def records_of(path: Path, split: str, last_step: int) -> Iterator[dict[str, Any]]:
    """The records of a split up to a step, in their order."""
    for line in read_lines(path):
        if 0 < _step(line) <= last_step and (record := json.loads(line)).get("split") == split:
            yield record


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file of records with their ends; none of a file that does not exist.

    Raises:
      OSError: as `files.open_regular`. A line that is too long for a record comes in pieces.
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
    """The step of a record; 0 where the line is torn or is no record."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else 0
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0
