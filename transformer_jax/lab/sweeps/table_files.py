# SPDX-License-Identifier: Apache-2.0
"""Files of a sweep's table: text, Markdown, LaTeX and CSV, and figures as vectors."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures import (
    Records,
    draw_differences,
    draw_sweep,
    draw_sweep_curves,
    save_figure,
)
from transformer_jax.lab.pictures.style import Picture
from transformer_jax.lab.sweeps import tables
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runs.workdir import CURVES, DIFFERENCES, RESULT, SWEEP, TABLE, lock_workdir
from transformer_jax.runtime.files import write_atomic

_VECTORS = ("pdf", "svg")

logger = logging.getLogger(__name__)


def write_tables(rows: Sequence[Row], workdir: Path) -> None:
    """Writes table.txt, table.md, table.tex, table.csv and table.png into a workdir.

    If the figure cannot be drawn or written, only a warning is logged.
    """
    writers = {
        "txt": tables.as_text_with_differences,
        "md": tables.as_markdown,
        "tex": tables.as_latex,
        "csv": tables.as_csv,
    }
    for ending, write in writers.items():
        write_atomic(workdir / f"{TABLE}.{ending}", write(rows).rstrip() + "\n")
    _write_figure(lambda: draw_table(rows), workdir / TABLE, ("png",))


def publish_tables(
    rows: Sequence[Row], records: Mapping[str, Mapping[str, Records]], folder: Path
) -> None:
    """Writes the tables of `write_tables` and figures as vectors (.pdf, .svg): table, curves, and
    differences if they were tested.

    Args:
      rows: of one or several sweeps.
      records: row -> seed -> its records, for the curves.
      folder: made if it does not exist. Earlier tables of `publish_tables` are replaced.

    Raises:
      UserError: the folder cannot be written, or it holds runs or files of others.
    """
    if any(folder.glob(f"*/{RESULT}")) or (folder / RESULT).exists():
        raise UserError(f"--to: {folder} is the folder of a sweep; choose another for the tables")
    with lock_workdir(folder, SWEEP):
        write_tables(rows, folder)
        _write_figure(lambda: draw_table(rows), folder / TABLE, _VECTORS)
        tests = tables.differences(rows)
        if tests:
            base = rows[0].name
            _write_figure(lambda: draw_differences(tests, base), folder / DIFFERENCES, _VECTORS)
        metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
        if records:
            curves = {name: list(seeds.values()) for name, seeds in records.items()}
            _write_figure(lambda: draw_sweep_curves(curves, metrics), folder / CURVES, _VECTORS)


def draw_table(rows: Sequence[Row]) -> Picture:
    """A figure of a table, with the marks of differences; trials are named by their values."""
    labels = dict(zip((row.name for row in rows), tables.figure_labels(rows), strict=True))
    tests = tables.differences(rows)
    different = [(labels[test.name], test.metric) for test in tests if test.differs]
    return draw_sweep({labels[row.name]: row.metrics for row in rows}, different)


def _write_figure(draw: Callable[[], Picture], path: Path, endings: Sequence[str]) -> None:
    try:
        figure = draw()
        for ending in endings:
            save_figure(figure, path.with_suffix(f".{ending}"))
    except Exception as error:  # matplotlib's, of any type
        names = ", ".join(f"{path}.{ending}" for ending in endings)
        logger.warning("%s is left out, the tables are written: %s", names, error)
