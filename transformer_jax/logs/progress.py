"""How a run shows where it is: a bar on a terminal, log lines elsewhere."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tqdm import tqdm

logger = logging.getLogger(__name__)

SHOWN_ON_THE_BAR = ("loss", "tokens_per_s")
NOT_SHOWN = ("watch",)
"""Splits whose figures are too many for a line."""


class Progress(Protocol):
    """How progress is shown."""

    def advance(self, step: int) -> None:
        """`step` steps are done, counted from the start of the run."""

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Shows metrics of `split` at `step`."""

    def close(self) -> None:
        """Nothing more will come."""


def start_progress(start_step: int, num_steps: int) -> Progress:
    """A bar where stderr is a terminal, log lines elsewhere."""
    if sys.stderr.isatty():
        return ProgressBar(start_step, num_steps)
    return ProgressLines(num_steps)


class ProgressBar:
    """A tqdm bar with time left and the latest training metrics; other splits get a log line."""

    def __init__(self, start_step: int, num_steps: int):
        self._bar = tqdm(
            initial=start_step, total=num_steps, unit="step", file=sys.stderr, dynamic_ncols=True
        )

    def advance(self, step: int) -> None:
        self._bar.update(step - self._bar.n)

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        if split in NOT_SHOWN:
            return
        if split == "train":
            shown = {name: metrics[name] for name in SHOWN_ON_THE_BAR if name in metrics}
            self._bar.set_postfix_str(format_metrics(shown))
        else:
            logger.info("step %d %s %s", step, split, format_metrics(metrics))

    def close(self) -> None:
        self._bar.close()


class ProgressLines:
    """A log line for each report: `step 200/4000 train loss 3.21 ... 12m left`."""

    def __init__(self, num_steps: int):
        self._num_steps = num_steps
        self._began: tuple[int, float] | None = None

    def advance(self, step: int) -> None:
        # The clock starts after the first step, which includes the compilation.
        if self._began is None:
            self._began = (step, time.monotonic())

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        if split in NOT_SHOWN:
            return
        place = f"step {step}/{self._num_steps} {split}"
        parts = (place, format_metrics(metrics), self._left(step))
        logger.info(" ".join(part for part in parts if part))

    def close(self) -> None:
        pass

    def _left(self, step: int) -> str:
        if self._began is None or step <= self._began[0] or step >= self._num_steps:
            return ""
        first_step, first_time = self._began
        seconds_a_step = (time.monotonic() - first_time) / (step - first_step)
        return format_seconds(seconds_a_step * (self._num_steps - step)) + " left"


class NoProgress:
    """Shows nothing."""

    def advance(self, step: int) -> None:
        pass

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """The numbers among `metrics`, four digits each: `loss 3.214 tokens_per_s 10453`; no shares."""
    numbers = {name: x for name, x in metrics.items() if isinstance(x, int | float)}
    numbers = {name: x for name, x in numbers.items() if not name.startswith("share_")}
    return " ".join(f"{name} {_four_digits(value)}" for name, value in numbers.items())


def _four_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """`45s`, `12m`, `1h05m`."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
