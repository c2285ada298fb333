"""Where the metrics of a run go: metrics.jsonl, TensorBoard and the progress shown meanwhile; on
request to Weights & Biases too."""

import contextlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.logs.progress import NoProgress, start_progress
from transformer_jax.logs.records import RecordFile, plain_value


@dataclass(frozen=True)
class LoggingConfig:
    """What is written about a run.

    Attributes:
      every_steps: updates between two records of training metrics.
      profile_steps: how many steps to trace, early in each start, into `workdir/profile`.
      wandb: the Weights & Biases project that metrics also go to; None: none.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: int = 100
    profile_steps: int = 0
    wandb: str | None = None

    def __post_init__(self):
        if self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {self.every_steps}")
        if self.profile_steps < 0:
            raise ValueError(f"profile_steps must be at least 0, got {self.profile_steps}")


class RunLog:
    """The metrics of one run, written and shown; a context manager.

    Writes `workdir/metrics.jsonl` (`step`, `split`, `time` in seconds since 1970, then the metrics)
    and the same numbers as TensorBoard events `split/name` under `workdir/tensorboard`. Both forget
    what lies beyond `start_step`, the step that the run was restored to (0 for a new one).

    In a job of many processes the first one alone holds a RunLog, the others a `NoLog`.

    Raises:
      UserError: `wandb`, a project of Weights & Biases, is given and its package is not installed.
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
        from transformer_jax.logs.event_file import EventFile  # only what trains writes events

        workdir.mkdir(parents=True, exist_ok=True)
        self._records = RecordFile(workdir / "metrics.jsonl", last_step=start_step)
        self._events = EventFile(workdir / "tensorboard", start_step=start_step)
        self._wandb = _start_wandb(wandb, workdir) if wandb else None
        self._progress = start_progress(start_step, num_steps) if shown else NoProgress()

    def advance(self, step: int) -> None:
        """Shows that `step` steps are done; cheap enough for every step."""
        self._progress.advance(step)

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Writes and shows metrics of `split` ("train", "valid", ...) at `step`.

        `metrics` holds numbers (Python's, or arrays without dimensions) and texts, such as the
        signature of a score; the texts go to metrics.jsonl alone.
        """
        plain = {name: plain_value(value) for name, value in metrics.items()}
        now = round(time.time(), 3)
        self._records.append({"step": step, "split": split, "time": now, **plain})
        numbers = {f"{split}/{n}": value for n, value in plain.items() if isinstance(value, Real)}
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
    """The metrics of replicas trained together: each in a log of its own, their means shown.

    Args:
      workdirs: of the replicas.
      options: of each `RunLog`.
    """

    def __init__(self, workdirs: Sequence[Path], **options: Any):
        super().__init__()
        self._logs = [RunLog(workdir, **options, shown=False) for workdir in workdirs]
        self._progress = start_progress(options["start_step"], options["num_steps"])
        for log in self._logs:
            self.push(log)
        self.callback(self._progress.close)

    def advance(self, step: int) -> None:
        """As `RunLog.advance`."""
        self._progress.advance(step)

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """As `RunLog.record`; what has an axis [R] is of one replica each, the rest of all."""
        for i, log in enumerate(self._logs):
            log.record(step, split, {n: v[i] if np.ndim(v) else v for n, v in metrics.items()})
        numbers = {n: v for n, v in metrics.items() if np.asarray(v).dtype.kind in "biuf"}
        self._progress.report(step, split, {n: float(np.mean(v)) for n, v in numbers.items()})


class NoLog(contextlib.nullcontext):
    """In place of a `RunLog` where another process writes it."""

    def __enter__(self) -> Self:
        return self

    def advance(self, step: int) -> None:
        pass

    def record(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        pass


def _start_wandb(project: str, workdir: Path) -> Any:
    """The W&B run of this workdir, which goes on where the workdir's does."""
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            "logging.wandb: the package wandb is not installed: pip install it, or set none"
        ) from error
    kept = workdir / "wandb" / "run_id"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(uuid.uuid4().hex)
    config = workdir / "config.json"
    return wandb.init(
        project=project,
        name=workdir.name,
        id=kept.read_text(),
        resume="allow",
        dir=workdir,
        config=json.loads(config.read_text()) if config.exists() else None,
    )
