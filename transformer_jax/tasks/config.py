"""The section `task` of a config."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the model learns.

    Attributes:
      name: the task, an entry of `tasks.TASKS`.
      mask_rate: share of the tokens that masked language modelling hides.
      whole_words: whether masked language modelling hides all tokens of a word together.

    Raises:
      ValueError: a value out of range.
    """

    name: str = "translation"
    mask_rate: float = 0.15
    whole_words: bool = False

    def __post_init__(self):
        if not 0 < self.mask_rate < 1:
            raise ValueError(f"mask_rate is {self.mask_rate}; it must lie in (0, 1)")
