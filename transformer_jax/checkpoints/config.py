# SPDX-License-Identifier: Apache-2.0
"""The section `checkpoint` of a config."""

from dataclasses import dataclass
from typing import Annotated

from transformer_jax.ranges import Range, Steps, check_fields


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, and how much to keep.

    Attributes:
      every_steps: steps between checkpoints.
      keep: number of latest full checkpoints to keep; the best one is kept in addition.
      keep_params: number of latest parameter-only snapshots to keep, for `--average`.
      asynchronous: write checkpoints while training continues; a kill can then lose the steps of
        one interval plus those taken during the last write. False: wait for each write, so that a
        kill loses one interval at most.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: Steps = 1000
    keep: Annotated[int, Range(1, 10**6)] = 3
    keep_params: Annotated[int, Range(0, 10**6)] = 0
    asynchronous: bool = True  # `async` is a keyword of Python

    def __post_init__(self) -> None:
        check_fields(self)
