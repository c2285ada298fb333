"""metrics.jsonl: the metrics of a run, one strict JSON object a line, in the order they came."""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
    """

    def __init__(self, path: Path, *, last_step: int):
        _drop_after(path, last_step)
        # Line buffering: whoever follows the run sees each record at once.
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record, a line of strict JSON."""
        self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()


def _drop_after(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _is_whole_record_up_to(last_step, line)]
    if len(kept) == len(lines):
        return
    logger.info("%s: %d lines after step %d dropped", path, len(lines) - len(kept), last_step)
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _is_whole_record_up_to(last_step: int, line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        return json.loads(line)["step"] <= last_step
    except (ValueError, TypeError, KeyError):
        return False
