"""What follows from validation scores that no longer rise."""

import math
from collections.abc import Iterable


class Patience:
    """When training ends early, and how far the learning rate has been lowered.

    Args:
      ends_after: so many evaluations without a better score end the training; None: none do.
      lowers_after: so many since the best score, or since the rate was last lowered, lower the
        learning rate; None: none do.
      factor: of the learning rate each time.
      scores: of earlier evaluations of the run, in their order.

    Attributes:
      rate: factor of the learning rate by now.
    """

    def __init__(
        self,
        ends_after: int | None = None,
        lowers_after: int | None = None,
        factor: float = 0.5,
        scores: Iterable[float] = (),
    ):
        self.ends_after, self.lowers_after, self._factor = ends_after, lowers_after, factor
        self.rate = 1.0
        self._best, self._waited, self._at_rate = -math.inf, 0, 0
        for score in scores:
            self.add(score)

    def add(self, score: float) -> None:
        """Takes the score of an evaluation; one that is not a number is no better."""
        if score > self._best:
            self._best, self._waited, self._at_rate = score, 0, 0
            return
        self._waited, self._at_rate = self._waited + 1, self._at_rate + 1
        if self._at_rate == self.lowers_after:
            self.rate, self._at_rate = self.rate * self._factor, 0

    def __str__(self) -> str:
        return f"{self._waited} evaluations without a better score"

    @property
    def exhausted(self) -> bool:
        """Whether training ends."""
        return self.ends_after is not None and self._waited >= self.ends_after
