# SPDX-License-Identifier: Apache-2.0
"""Progress of long calls: a bar on a terminal, one line in a notebook, log lines elsewhere.

    with progress.shown():            # train, sweep and evaluate
        with progress.Progress(total=1600, unit="step") as steps:
            steps.advance(1)

Lines are the log records of this package. If neither the program nor the user shows those of level
INFO, `shown` does so for its block; it does not change the root logger.
"""

import contextlib
import html
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from transformer_jax.errors import escape_controls

logger = logging.getLogger(__name__)

_PACKAGE = "transformer_jax"
_UPDATE_SECONDS = 0.2  # between updates of a notebook's line
_LINE_SECONDS = 10.0  # between log lines of `track`
_CURVE_POINTS = 120
_TABLE_ROWS = 20
_CURVE = (120, 20)  # width and height in pixels


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Counts what is done, for the display of the surrounding `shown`.

    Args:
      start: units done by an earlier start.

    Attributes:
      done: units done.
      text: the latest metrics, for displays that update in place.
      curve: values over time, such as the loss.
      rows: texts by column, such as the metrics of each evaluation.
    """

    def __init__(self, total: int, start: int = 0, unit: str = "step") -> None:
        self.total = total
        self.done = start
        self.unit = unit
        self.text = ""
        self.curve: list[float] = []
        self.rows: list[Mapping[str, str]] = []
        self._first: tuple[int, float] | None = None
        self._display = _display.get() or Display()

    def advance(self, done: int) -> None:
        """Shows that `done` units are done. Cheap enough for every step."""
        # The clock starts after the first unit, which includes the compilation.
        if self._first is None:
            self._first = (done, time.monotonic())
        self.done = done
        self._display.update(self)

    def report(
        self, line: str, text: str, value: float | None = None, row: Mapping[str, str] | None = None
    ) -> None:
        """Logs a line, and shows a text, a curve that `value` continues, and a table that `row`
        continues."""
        logger.info("%s", line)
        self.text = text
        if row is not None:
            self.rows.append(row)
        if value is not None:
            self.curve.append(value)
            if len(self.curve) > _CURVE_POINTS:
                self.curve = self.curve[::2]  # the whole run at half the resolution
        self._display.update(self, at_once=True)

    def time_left(self) -> str:
        """The estimated time until all is done, such as `12m left`; empty if it is unknown."""
        if self._first is None or not self._first[0] < self.done < self.total:
            return ""
        first, since = self._first
        seconds = (time.monotonic() - since) / (self.done - first) * (self.total - self.done)
        return f"{format_seconds(seconds)} left"

    def close(self) -> None:
        """Ends the display of this progress."""
        self._display.end(self)

    def __exit__(self, *_: object) -> None:
        self.close()


def track[Part](parts: Iterable[Sequence[Part]], total: int, unit: str) -> Iterator[Sequence[Part]]:
    """Yields parts of `total` units and shows how many are done.

    Shows nothing outside of `shown`, nor inside of another `Progress`, such as that of training.
    """
    display = _display.get()
    if display is None or display.is_busy:
        yield from parts
        return
    logged = time.monotonic()
    with Progress(total, unit=unit) as progress:
        for part in parts:
            yield part
            progress.advance(progress.done + len(part))
            if time.monotonic() - logged > _LINE_SECONDS and not display.is_live:
                logged = time.monotonic()
                message = f"{unit} {progress.done}/{total}  {progress.time_left()}"
                logger.info("%s", message.rstrip())


@contextlib.contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """Shows the progress of the block, if it is wanted. An outer `shown` decides for inner ones."""
    if _display.get() is not None:
        yield
        return
    display = _open_display() if wanted else Display()
    token = _display.set(display)
    try:
        with _lines_on(display) if wanted else contextlib.nullcontext():
            yield
    finally:
        _display.reset(token)


def set_title(title: str) -> None:
    """Names the part of the surrounding `shown` that begins, such as the row of a sweep."""
    display = _display.get()
    if display is not None:
        display.title = title


class Display:
    """Display that shows nothing; the base of those that do.

    Attributes:
      is_live: whether the display updates in place.
      is_busy: whether it shows a `Progress`.
      title: the part that runs, shown before the counts.
      line_format: format of the log records that `line` gets.
    """

    is_live = False
    is_busy = False
    title = ""
    line_format = "%(asctime)s %(message)s"

    def line(self, text: str, *, is_warning: bool = False) -> None:
        """Shows a line."""

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        """Shows the state of a progress, now or soon."""
        self.is_busy = True

    def end(self, progress: Progress) -> None:
        """Shows the last state of a progress."""
        self.is_busy = False


class Lines(Display):
    """Lines on stderr."""

    def line(self, text: str, *, is_warning: bool = False) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a full disk
            print(escape_controls(text), file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar at the bottom of a terminal; lines stay above it."""

    is_live = True
    _bar: Any = None

    def line(self, text: str, *, is_warning: bool = False) -> None:
        with tqdm.external_write_mode(file=sys.stderr):
            super().line(text)

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        super().update(progress)
        if self._bar is None:
            self._bar = tqdm(
                desc=self.title or None,
                initial=progress.done,
                total=progress.total,
                unit=progress.unit,
                file=sys.stderr,
                dynamic_ncols=True,
                leave=False,
            )
        self._bar.update(progress.done - self._bar.n)
        if at_once:
            self._bar.set_postfix_str(progress.text)

    def end(self, progress: Progress) -> None:
        super().end(progress)
        if self._bar is not None:
            self._bar.close()
        self._bar = None


class Notebook(Display):
    """One line of a notebook's cell; where the front end shows HTML, with a curve and a table that
    stays."""

    is_live = True
    line_format = "%(message)s"
    _handle: Any = None
    _curve: Sequence[float] = ()
    _rows: Sequence[Mapping[str, str]] = ()
    _updated = 0.0

    def line(self, text: str, *, is_warning: bool = False) -> None:
        if is_warning:
            print(escape_controls(text), file=sys.stderr)
        elif not self.is_busy:
            self._show(text)

    def update(self, progress: Progress, *, at_once: bool = False) -> None:
        super().update(progress)
        if at_once or time.monotonic() - self._updated > _UPDATE_SECONDS:
            self._curve = progress.curve
            self._rows = progress.rows
            position = f"{progress.unit} {progress.done:,}/{progress.total:,}"
            parts = (self.title, position, progress.text, progress.time_left())
            self._show(" · ".join(part for part in parts if part))

    def end(self, progress: Progress) -> None:
        self.update(progress, at_once=True)
        super().end(progress)

    def _show(self, text: str) -> None:
        from IPython.display import display

        self._updated = time.monotonic()
        text = escape_controls(text).replace("  ", " · ")  # HTML shows two spaces as one
        page = f"{sparkline(self._curve)} <code>{html.escape(text)}</code>{_table(self._rows)}"
        shown = {"text/plain": text, "text/html": page}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


_display: ContextVar[Display | None] = ContextVar("display", default=None)


def in_notebook() -> bool:
    """Returns True in a cell of a notebook; the IPython of a terminal has no kernel."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


def _open_display() -> Display:
    if in_notebook():
        return Notebook()
    if sys.stderr is None:
        return Display()
    return Bar() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def _lines_on(display: Display) -> Iterator[None]:
    """Shows the package's log records on a display, unless they are shown anyway."""
    package = logging.getLogger(_PACKAGE)
    if package.isEnabledFor(logging.INFO) and package.hasHandlers():
        yield
        return
    handler = _LineHandler(display, package.getEffectiveLevel())
    level = package.level
    propagate = package.propagate
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    package.propagate = False  # the user's handlers get what they got before, from this one
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        package.propagate = propagate


class _LineHandler(logging.Handler):
    """Shows records on a display; those of the user's level go to the user's handlers."""

    def __init__(self, display: Display, users_level: int) -> None:
        super().__init__()
        self._display = display
        self._users_level = users_level
        self.setFormatter(logging.Formatter(display.line_format, datefmt="%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        if record.levelno >= self._users_level and not all(map(_is_basic, root.handlers)):
            root.callHandlers(record)
        elif record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {record.getMessage()}"
            self._display.line(text, is_warning=True)
        else:
            self._display.line(self.format(record))


def _is_basic(handler: logging.Handler) -> bool:
    """Whether a handler is as of `logging.basicConfig()`: absl adds one as Orbax is imported."""
    return getattr(handler.formatter, "_fmt", None) == logging.BASIC_FORMAT


def sparkline(values: Sequence[float]) -> str:
    """An inline SVG of a curve; empty for less than two finite values."""
    finite = [value for value in values if abs(value) < float("inf")]
    if len(finite) < 2:
        return ""
    width, height = _CURVE
    low = min(finite)
    high = max(finite)
    points = " ".join(
        f"{1 + i * (width - 2) / (len(finite) - 1):.1f},"
        f"{1 + (height - 2) * (high - value) / ((high - low) or 1):.1f}"
        for i, value in enumerate(finite)
    )
    return (
        f'<svg width="{width}" height="{height}" style="vertical-align:middle">'
        f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="1.5"/></svg>'
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """An HTML table; of many rows the last ones."""
    if not rows:
        return ""
    names = list(rows[-1])
    lines = [names, *([row.get(name, "") for name in names] for row in rows[-_TABLE_ROWS:])]
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in lines)
    hidden = len(rows) - _TABLE_ROWS
    note = f"<caption>after {hidden} more</caption>" if hidden > 0 else ""
    return f"<table>{note}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def format_seconds(seconds: float) -> str:
    """Formats a duration: `45s`, `12m`, `1h05m`."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
