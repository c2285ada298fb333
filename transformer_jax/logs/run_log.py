# SPDX-License-Identifier: Apache-2.0
"""Log of a run: metrics.jsonl, TensorBoard, progress on stderr, and optionally Weights & Biases."""

import contextlib
import json
import logging
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self

import numpy as np
from tqdm import tqdm

from transformer_jax.errors import UserError, install_hint
from transformer_jax.logs.records import RecordFile, to_python
from transformer_jax.logs.tensorboard import EventFile
from transformer_jax.ranges import Range, Steps, check_fields
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic

logger = logging.getLogger(__name__)

_ON_THE_BAR = ("loss", "tokens_per_s")
_HIDDEN_SPLITS = ("watch",)
"""Splits with too many metrics for a line of progress."""


@dataclass(frozen=True)
class LoggingConfig:
    """Logging of a run.

    Attributes:
      every_steps: steps between records of training metrics.
      watch_steps: steps between records of norms by layer, attention entropies and dead units
        (`training.diagnostics`), each of which takes about as long as a training step; None: none.
      profile_steps: number of steps to trace into `workdir/profile`, soon after each start.
      wandb: Weights & Biases project that also receives the metrics; None: none.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: Steps = 100
    watch_steps: Steps | None = None
    profile_steps: Annotated[int, Range(0, 10_000)] = 0
    wandb: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class Log(Protocol):
    """Receives the progress and metrics of the training loop."""

    def advance(self, step: int) -> None:
        """Shows that `step` steps are done. Cheap enough for every step."""

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Writes and shows metrics.

        Args:
          step: steps done.
          split: "train", "valid", ...
          metrics: numbers (of Python, or array scalars) and strings, such as the signature of a
            score. Strings are only written to metrics.jsonl.
        """


class RunLog:
    """Log of one run. In a job, only process 0 has one; the others have a `NoLog`.

    Writes `workdir/metrics.jsonl` (`step`, `split`, `time` in seconds since 1970, then the metrics)
    and the same numbers as TensorBoard events `split/name` under `workdir/tensorboard`.

    Args:
      workdir: workdir of the run.
      start_step: step where the run resumes, 0 for a new one. Later records of an earlier
        start are dropped from both files.
      num_steps: total number of steps.
      wandb: Weights & Biases project that also receives the metrics; None: none.
      shown: show progress.

    Raises:
      UserError: `wandb` is given and its package is not installed.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        start_step: int,
        num_steps: int,
        wandb: str | None = None,
        shown: bool = True,
    ):
        workdir.mkdir(parents=True, exist_ok=True)
        self._records = RecordFile(workdir / "metrics.jsonl", last_step=start_step)
        self._events = EventFile(workdir / "tensorboard", start_step=start_step)
        self._wandb = _start_wandb(wandb, workdir) if wandb else None
        self._progress = start_progress(start_step, num_steps) if shown else NoProgress()

    def advance(self, step: int) -> None:
        self._progress.advance(step)

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        plain = {name: to_python(value) for name, value in metrics.items()}
        now = round(time.time(), 3)
        self._records.append({"step": step, "split": split, "time": now, **plain})
        numbers = {f"{split}/{n}": x for n, x in plain.items() if isinstance(x, int | float)}
        self._events.append(step, numbers, now)
        if self._wandb:
            self._wandb.log(numbers, step=step)
        self._progress.report(step, split, plain)

    def close(self) -> None:
        self._progress.close()
        self._records.close()
        self._events.close()
        if self._wandb:
            self._wandb.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError:  # for example a full disk, which must not hide an earlier error
            if kind is None:
                raise


class ReplicaLogs(contextlib.ExitStack):
    """Logs of replicas that are trained together. Progress shows the means of their metrics.

    Args:
      workdirs: workdirs of the replicas.
      start_step: as in `RunLog`, like the following arguments.
      num_steps: total number of steps.
      wandb: Weights & Biases project.
    """

    def __init__(
        self,
        workdirs: Sequence[Path],
        *,
        start_step: int,
        num_steps: int,
        wandb: str | None = None,
    ):
        super().__init__()
        self._logs = [
            RunLog(workdir, start_step=start_step, num_steps=num_steps, wandb=wandb, shown=False)
            for workdir in workdirs
        ]
        self._progress = start_progress(start_step, num_steps)
        for log in self._logs:
            self.push(log)
        self.callback(self._progress.close)

    def advance(self, step: int) -> None:
        self._progress.advance(step)

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Writes and shows metrics. An array [R] has one value per replica; other values are shared
        by all."""
        for i, log in enumerate(self._logs):
            log.record(step, split, {n: v[i] if np.ndim(v) else v for n, v in metrics.items()})
        numbers = {n: v for n, v in metrics.items() if np.asarray(v).dtype.kind in "biuf"}
        self._progress.report(step, split, {n: float(np.mean(v)) for n, v in numbers.items()})


class NoLog(contextlib.nullcontext["NoLog"]):
    """Log of a process that writes none."""

    def __enter__(self) -> Self:
        return self

    def advance(self, step: int) -> None:
        pass

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        pass


def _start_wandb(project: str, workdir: Path) -> Any:
    """Starts or resumes the Weights & Biases run of a workdir, whose id the workdir stores."""
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            f"logging.wandb: the package wandb is not installed: {install_hint('wandb')}; "
            "or set it to none"
        ) from error
    id_file = workdir / "wandb" / "run_id"
    if not id_file.exists():
        id_file.parent.mkdir(exist_ok=True)
        write_atomic(id_file, uuid.uuid4().hex)
    config = workdir / "config.json"
    return wandb.init(
        project=project,
        name=workdir.name,
        id=read_regular(id_file, SETTINGS_BYTES).decode(),
        resume="allow",
        dir=workdir,
        config=json.loads(read_regular(config, SETTINGS_BYTES)) if config.exists() else None,
    )


class Progress(Protocol):
    """Display of progress on stderr."""

    def advance(self, step: int) -> None:
        """Shows that `step` steps are done since the start of the run."""

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Shows metrics of a split."""

    def close(self) -> None:
        """Ends the display."""


def start_progress(start_step: int, num_steps: int) -> Progress:
    """Starts a bar if stderr is a terminal, else log lines."""
    if sys.stderr.isatty():
        return ProgressBar(start_step, num_steps)
    return ProgressLines(num_steps)


class ProgressBar:
    """Progress as a tqdm bar with the latest training metrics; other splits get a log line."""

    def __init__(self, start_step: int, num_steps: int):
        self._bar = tqdm(
            initial=start_step, total=num_steps, unit="step", file=sys.stderr, dynamic_ncols=True
        )

    def advance(self, step: int) -> None:
        self._bar.update(step - self._bar.n)

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        if split in _HIDDEN_SPLITS:
            return
        if split == "train":
            shown = {name: metrics[name] for name in _ON_THE_BAR if name in metrics}
            self._bar.set_postfix_str(format_metrics(shown))
        else:
            logger.info("step %d %s %s", step, split, format_metrics(metrics))

    def close(self) -> None:
        self._bar.close()


class ProgressLines:
    """Progress as log lines: `step 200/4000 train loss 3.21 ... 12m left`."""

    def __init__(self, num_steps: int):
        self._num_steps = num_steps
        self._first: tuple[int, float] | None = None

    def advance(self, step: int) -> None:
        # The clock starts after the first step, which includes the compilation.
        if self._first is None:
            self._first = (step, time.monotonic())

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        if split in _HIDDEN_SPLITS:
            return
        position = f"step {step}/{self._num_steps} {split}"
        parts = (position, format_metrics(metrics), self._time_left(step))
        logger.info(" ".join(part for part in parts if part))

    def close(self) -> None:
        pass

    def _time_left(self, step: int) -> str:
        if self._first is None or step <= self._first[0] or step >= self._num_steps:
            return ""
        first_step, first_time = self._first
        seconds_per_step = (time.monotonic() - first_time) / (step - first_step)
        return format_seconds(seconds_per_step * (self._num_steps - step)) + " left"


class NoProgress:
    """Progress that is not shown."""

    def advance(self, step: int) -> None:
        pass

    def report(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Formats numbers, without strings and shares of time: `loss 3.214 tokens_per_s 10453`."""
    numbers = {name: x for name, x in metrics.items() if isinstance(x, int | float)}
    numbers = {name: x for name, x in numbers.items() if not name.startswith("share_")}
    return " ".join(f"{name} {_four_digits(value)}" for name, value in numbers.items())


def _four_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """Formats a duration: `45s`, `12m`, `1h05m`."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
