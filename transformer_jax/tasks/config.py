"""The section `task` of a config."""

import dataclasses

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
    mask_rate: float = 0.15
    whole_words: bool = False
    metric: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise ValueError(f"mask_rate is {self.mask_rate}; it must lie in (0, 1)")
        if self.metric is not None:
            METRICS.find(self.metric)
