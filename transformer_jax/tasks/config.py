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
      tree_words: tokens for words in the vocabulary of trees: the most frequent words, and classes
        of all others. The decoder then reads each word, and writes its tag, before the brackets in
        front of it, which it learns from few trees; 0: it writes a tag where a word stands, as in
        Vinyals et al. 2015.
      metric: what compares outputs with targets, an entry of `scoring.METRICS`, which then chooses
        the best checkpoint; None: the task's own. Refused by tasks that compare no texts.

    Raises:
      ValueError: a value out of range, or no metric has the name.
    """

    name: str = "translation"
    mask_rate: Annotated[float, Range(0, 1, "()")] = 0.15
    whole_words: bool = False
    tree_words: Annotated[int, Range(0, 1_000_000)] = 0
    metric: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.metric is not None:
            METRICS.find(self.metric)
