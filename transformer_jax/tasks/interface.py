"""What a task is: everything that depends on what the examples mean."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Batch = Mapping[str, jax.Array]


class Prediction(NamedTuple):
    """An output and its score, higher is better."""

    text: str
    score: float


class Task(Protocol):
    """The seam between the training loop and what is trained.

    Attributes:
      lengths: the slots of a packed row for each feature that `preprocess` yields.
      best_by: the figure of `evaluate` that chooses the best checkpoint, higher is better.
    """

    lengths: Mapping[str, int]
    best_by: str

    def preprocess(
        self, example: Mapping[str, str], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Text to integer features, one int32 array [n] each."""

    def loss(
        self, params: Any, batch: Batch, rng: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """(loss, weight, further sums), each summed over a packed batch; rng None: no dropout."""

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: Any
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Figures of the decoded examples, and the best output of each."""

    def predict(
        self,
        params: Any,
        lines: Sequence[str],
        decode: Any,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> Iterator[list[Prediction]]:
        """The n best outputs of each line, in order, each behind its prefix; warnings count lines
        from `first_line`."""
