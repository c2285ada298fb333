"""The section `task` of a config."""

import dataclasses
from typing import Annotated

from transformer_jax.ranges import Range, check_fields
from transformer_jax.scoring import METRICS


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the model learns.

    Attributes:
      name: the task, an entry of `tasks.TASKS`.
      mask_rate: share of the tokens that masked language modelling hides.
      whole_words: whether masked language modelling hides all tokens of a word together.
      metric: what compares outputs with targets, an entry of `scoring.METRICS`, which then chooses
        the best checkpoint; None: the task's own. Refused by tasks that compare no texts.

    Raises:
      ValueError: a value out of range, or no metric has the name.
    """

    name: str = "translation"
    mask_rate: Annotated[float, Range(0, 1, "()")] = 0.15
    whole_words: bool = False
    metric: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.metric is not None:
            METRICS.find(self.metric)
