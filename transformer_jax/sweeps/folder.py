"""What the folder of a sweep, and of each of its rows, keeps besides the runs."""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.workdir import MARK, TABLE
from transformer_jax.runtime.files import (
    SETTINGS_BYTES,
    read_regular,
    replacing,
    write_whole,
)
from transformer_jax.sweeps import tables
from transformer_jax.sweeps.plot import draw_rows
from transformer_jax.sweeps.tables import Row

logger = logging.getLogger(__name__)


def write_tables(rows: Sequence[Row], workdir: Path) -> None:
    """Writes table.txt, table.md, table.csv and table.png into a workdir."""
    ways = {"txt": tables.as_text, "md": tables.as_markdown, "csv": tables.as_csv}
    for ending, write in ways.items():
        write_whole(workdir / f"{TABLE}.{ending}", write(rows).rstrip() + "\n")
    with replacing(workdir / f"{TABLE}.png") as file:
        draw_rows(rows).savefig(file, format="png")


def kept_row(path: Path, name: str, asked: Mapping[str, Any]) -> Row | None:
    """The finished row that a file keeps; None where it keeps none, or another one."""
    try:
        result = json.loads(read_regular(path, SETTINGS_BYTES))
        return Row(name, **result["row"]) if result["asked"] == asked else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        logger.warning("%s is damaged or of an earlier version; it is measured again", path)
        return None


@contextlib.contextmanager
def stopwatch(path: Path) -> Iterator[Callable[[], float]]:
    """Gives a function that returns the seconds spent so far, earlier starts' included; they are
    kept in a file once a run has begun beside it."""
    try:
        before = float(read_regular(path, SETTINGS_BYTES))
    except (OSError, ValueError):
        before = 0.0
    start = time.perf_counter()

    def seconds() -> float:
        return before + time.perf_counter() - start

    try:
        yield seconds
    finally:
        if any(any(path.parent.glob(f"{runs}/{MARK}")) for runs in ("*", "*/*")):
            write_whole(path, f"{seconds():.1f}\n")
