"""The section `checkpoint` of a config."""

from dataclasses import dataclass
from typing import Annotated

from transformer_jax.ranges import Range, Steps, check_fields


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, and how much to keep.

    Attributes:
      every_steps: updates between two checkpoints.
      keep: how many full checkpoints, the latest ones; the best one is kept besides.
      keep_params: how many snapshots of the parameters alone, the latest ones, for `--average`.
      asynchronous: write while training goes on; a kill then loses the steps of one interval and
        those taken while the last save was written. False: each save is on disk before the next
        step, so that a kill loses one interval at most.

    Raises:
      ValueError: a value out of range.
    """

    every_steps: Steps = 1000
    keep: Annotated[int, Range(1, 10**6)] = 3
    keep_params: Annotated[int, Range(0, 10**6)] = 0
    asynchronous: bool = True  # `async` is a keyword of Python

    def __post_init__(self) -> None:
        check_fields(self)
