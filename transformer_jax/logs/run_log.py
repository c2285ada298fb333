# SPDX-License-Identifier: Apache-2.0
"""Log of a run: metrics.jsonl, progress on stderr, and experiment trackers."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from transformer_jax.fields import Configurable
from transformer_jax.logs.records import RecordFile, to_python
from transformer_jax.logs.trackers import TrackedRun, TrackerThread
from transformer_jax.ranges import OneOf, Range, Steps, check_fields
from transformer_jax.runtime.progress import Progress

_HIDDEN_SPLITS = ("watch",)
"""Splits with too many metrics for a line of progress."""


@dataclass(frozen=True)
class LoggingConfig(Configurable):
    """Logging of a run.

    Attributes:
      every_steps: steps between records of training metrics.
      watch_steps: steps between records of norms by layer, attention entropies and dead units
        (`training.diagnostics`); each takes about as long as a training step; None: none.
      profile_steps: number of steps to trace into `workdir/profile`, soon after each start.
      trackers: experiment trackers that receive the metrics (`logs.trackers`), separated by commas;
        None: none.
      project: project of the trackers that have projects; in MLflow the experiment.
      console: metrics on the lines of progress: "short": loss, the metric that selects the best
        checkpoint, speed and learning rate; "full": all. metrics.jsonl and trackers always get all.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: Steps = 100
    watch_steps: Steps | None = None
    profile_steps: Annotated[int, Range(0, 10_000)] = 0
    trackers: str | None = "tensorboard"
    project: str = "transformer_jax"
    console: Annotated[str, OneOf("short", "full")] = "short"

    def __post_init__(self) -> None:
        check_fields(self)


_DEFAULT = LoggingConfig()


class RunLog(contextlib.ExitStack):
    """Log of one run, or of replicas that are trained together.

    Writes `metrics.jsonl` in each workdir (`step`, `split`, `time` in seconds since 1970, then the
    metrics) and passes the same numbers as `split/name` to the trackers. Progress shows the means
    of replicas.

    Args:
      workdirs: the workdir of the run, or of each replica; none in a process of a job that writes
        no log.
      start_step: step where the run resumes, 0 for a new one. Later records of an earlier
        start are dropped.
      config: the section `logging`.
      console: shows the progress; None: it is not shown.

    Raises:
      UserError: the package of a tracker is not installed.
    """

    def __init__(
        self,
        workdirs: Sequence[Path],
        *,
        start_step: int,
        config: LoggingConfig = _DEFAULT,
        console: "Console | None" = None,
    ):
        super().__init__()
        self._console = console
        self._files: list[tuple[RecordFile, list[TrackerThread]]] = []
        for workdir in workdirs:
            workdir.mkdir(parents=True, exist_ok=True)
            records = RecordFile(workdir / "metrics.jsonl", last_step=start_step)
            trackers = [
                TrackerThread(name, TrackedRun(workdir, start_step, config.project, config))
                for name in dict.fromkeys(config.trackers.split(",") if config.trackers else ())
            ]
            self._files.append((records, trackers))
            # The last is closed first, and the others whatever it raises: trackers get the last
            # records even where a full disk has no room for them.
            for tracker in trackers:
                self.callback(tracker.close)
            self.callback(records.close)
        if console:
            self.callback(console.close)

    def advance(self, step: int) -> None:
        """Shows that `step` steps are done. Cheap enough for every step."""
        if self._console:
            self._console.advance(step)

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Writes and shows metrics.

        Args:
          step: steps done.
          split: "train", "valid", ...
          metrics: numbers (of Python, or array scalars) and strings, such as the signature of a
            score. Strings are only written to metrics.jsonl. Of replicas, an array [R] has a value
            for each; other values are shared by all.
        """
        now = round(time.time(), 3)
        splits = len(self._files) > 1  # a callback may give one run a list
        runs = []
        for i, (records, trackers) in enumerate(self._files):
            of_run = {n: v[i] if splits and np.ndim(v) else v for n, v in metrics.items()}
            plain = {name: to_python(value) for name, value in of_run.items()}
            runs.append({name: x for name, x in plain.items() if isinstance(x, int | float)})
            records.append({"step": step, "split": split, "time": now, **plain})
            for tracker in trackers:
                tracker.put(step, {f"{split}/{name}": x for name, x in runs[i].items()}, now)
        if self._console:
            shown = runs[0]
            if splits:
                numbers = {n: v for n, v in metrics.items() if np.asarray(v).dtype.kind in "biuf"}
                shown = {n: float(np.mean(v)) for n, v in numbers.items()}
            self._console.record(step, split, shown)

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        except OSError:  # for example a full disk, which must not hide an earlier error
            if raised[1] is None:
                raise


class Console(Progress):
    """Progress of training: its lines, and what updates in place.

    Lines: `step 200/4000  loss 3.214  10,453 tokens/s  lr 0.0003  12m left`.

    Args:
      start_step: step where the run resumes, 0 for a new one.
      num_steps: total number of steps.
      metric: metric of the validation split that selects the best checkpoint.
      style: `LoggingConfig.console`.
    """

    def __init__(self, start_step: int, num_steps: int, metric: str, style: str = "short") -> None:
        super().__init__(num_steps, start_step)
        self._metric = metric
        self._is_full = style == "full"
        self._latest: dict[str, str] = {}
        self._train_loss: float | None = None

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Shows metrics."""
        if split in _HIDDEN_SPLITS:
            return
        is_train = split == "train"
        chosen = ("tokens_per_s", "learning_rate") if is_train else (self._metric,)
        names = dict.fromkeys(("loss", *chosen))
        parts = [_show_metric(name, metrics[name]) for name in names if name in metrics]
        prefix = [] if is_train else [split]
        self._latest[split] = _join(parts if is_train else [*prefix, *parts[-1:]])
        if self._is_full:
            prefix, parts = [split], [format_metrics(metrics)]
        time_left = self.time_left() if is_train else ""
        line = _join([f"step {step}/{self.total}", *prefix, *parts, time_left])
        value = metrics.get("loss") if is_train else None
        if is_train:
            self._train_loss = value
        row = None if is_train else self._row(step, split, metrics)
        self.report(line, _join(self._latest.values()), value, row)

    def _row(self, step: int, split: str, metrics: Mapping[str, Any]) -> dict[str, str]:
        """A line of the table of evaluations."""
        row = {"step": f"{step:,}"}
        if self._train_loss is not None:
            row["train loss"] = four_digits(self._train_loss)
        for name in dict.fromkeys(("loss", self._metric)):
            if name in metrics:
                row[f"{split} {name}"] = four_digits(metrics[name])
        return row


def _join(parts: Iterable[str]) -> str:
    return "  ".join(part for part in parts if part)


def _show_metric(name: str, value: float) -> str:
    match name:
        case "tokens_per_s":
            return f"{value:,.0f} tokens/s"
        case "learning_rate":
            return f"lr {value:.3g}"
    return f"{name} {four_digits(value)}"


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Formats numbers, without strings and shares of time: `loss 3.214 tokens_per_s 10453`."""
    numbers = {name: x for name, x in metrics.items() if isinstance(x, int | float)}
    numbers = {name: x for name, x in numbers.items() if not name.startswith("share_")}
    return " ".join(f"{name} {four_digits(value)}" for name, value in numbers.items())


def four_digits(value: float) -> str:
    """Formats a number with four significant digits, or as an integer."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
