# SPDX-License-Identifier: Apache-2.0
"""Callbacks: code of one's own after records, evaluations and checkpoints of a training run."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.registry import Registry
from transformer_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """A run in training, as its callbacks see it.

    Attributes:
      settings: all sections of the config: `settings.train.num_steps`.
      task: the task, with its model and tokenizers.
    """

    workdir: Path
    settings: Any
    task: Any


class Callback:
    """Called after records, evaluations and checkpoints; an entry of `CALLBACKS`.

    Training waits for it (`share_callbacks` of the records). An exception ends training, with the
    file and line that raised it; the run resumes from its last checkpoint. Of replicas that are
    trained together, metrics and parameters have a leading axis. The next step may overwrite arrays
    of parameters: copy what is kept (`jax.device_get`).

    Attributes:
      every_process: make and call it in all processes of a job, which computations with parameters
        that are divided among them need; otherwise in process 0 alone.
    """

    every_process: ClassVar[bool] = False

    def __init__(self, run: TrainingRun) -> None:
        self.run = run

    def at_record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Receives the training metrics since the last record."""

    def at_evaluation(
        self, step: int, metrics: Mapping[str, Any], params: Any
    ) -> Mapping[str, Any] | None:
        """Receives the validation metrics, and the parameters that were evaluated.

        Metrics that it returns are recorded with the others.
        """

    def at_checkpoint(self, step: int, state: TrainState) -> None:
        """Receives the saved state. Its files in the workdir may still be being written."""


CALLBACKS: Registry[type[Callback]] = Registry("train.callbacks", several=True)
