"""Where the metrics of a run go: metrics.jsonl, TensorBoard and the terminal; on request to
Weights & Biases too."""

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

from transformer_jax.errors import UserError
from transformer_jax.logs.records import RecordFile, plain_value
from transformer_jax.logs.tensorboard import EventFile
from transformer_jax.ranges import Range, Steps, check_fields
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic

# FOLDED logs.progress: How a run shows where it is: a bar on a terminal, log lines elsewhere.


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


@dataclass(frozen=True)
class LoggingConfig:
    """What is logged.

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
    """Where the training loop reports to."""

    def advance(self, step: int) -> None:
        """Shows that `step` steps are done; cheap enough for every step."""

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Writes and shows metrics.

        Args:
          step: updates done.
          split: "train", "valid", ...
          metrics: numbers (Python's, or arrays without dimensions) and texts, such as the signature
            of a score; the texts go to metrics.jsonl alone.
        """


class RunLog:
    """The log of one run; in a job of many processes only the first has it, the others a `NoLog`.

    Writes `workdir/metrics.jsonl` (`step`, `split`, `time` in seconds since 1970, then the metrics)
    and the same numbers as TensorBoard events `split/name` under `workdir/tensorboard`.

    Args:
      workdir: of the run.
      start_step: the step that the run was restored to, 0 for a new one; both files drop what lies
        beyond it.
      num_steps: steps in all.
      wandb: a project of Weights & Biases that metrics also go to.
      shown: whether progress is shown.

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
        plain = {name: plain_value(value) for name, value in metrics.items()}
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
        except OSError:  # a full disk, say
            if kind is None:
                raise


class ReplicaLogs(contextlib.ExitStack):
    """The logs of replicas trained together, one for each; the means of their metrics are shown.

    Args:
      workdirs: of the replicas.
      start_step: as of `RunLog`, and so the rest.
      num_steps: steps in all.
      wandb: project.
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
        """An array [R] holds a value for each replica; anything else is the same for all."""
        for i, log in enumerate(self._logs):
            log.record(step, split, {n: v[i] if np.ndim(v) else v for n, v in metrics.items()})
        numbers = {n: v for n, v in metrics.items() if np.asarray(v).dtype.kind in "biuf"}
        self._progress.report(step, split, {n: float(np.mean(v)) for n, v in numbers.items()})


class NoLog(contextlib.nullcontext["NoLog"]):
    """The log of a process that writes none."""

    def __enter__(self) -> Self:
        return self

    def advance(self, step: int) -> None:
        pass

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        pass


def _start_wandb(project: str, workdir: Path) -> Any:
    """The run of Weights & Biases that belongs to this workdir: a resumed run goes on in it."""
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            "logging.wandb: the package wandb is not installed: pip install it, or set none"
        ) from error
    kept = workdir / "wandb" / "run_id"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        write_atomic(kept, uuid.uuid4().hex)
    config = workdir / "config.json"
    return wandb.init(
        project=project,
        name=workdir.name,
        id=read_regular(kept, SETTINGS_BYTES).decode(),
        resume="allow",
        dir=workdir,
        config=json.loads(read_regular(config, SETTINGS_BYTES)) if config.exists() else None,
    )
