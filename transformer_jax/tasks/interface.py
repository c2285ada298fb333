"""What a task is: everything that depends on what the examples mean."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
      read: those of the features whose tokens the model reads: what throughput counts.
      best_by: the figure that chooses the best checkpoint; higher is better, unless its name has a
        minus sign before it.
    """

    lengths: Mapping[str, int]
    read: Sequence[str]
    best_by: str

    def prepare(self, examples: Sequence[Mapping[str, str]], training: bool) -> Sequence[Any]:
        """What is packed, one by one: the examples themselves, or what is made of all of them."""

    def preprocess(self, example: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """One of these as integer features, one int32 array [n] each."""

    def loss(
        self, params: Any, batch: Batch, rng: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """(loss, weight, further sums), each summed over a packed batch; rng None: no dropout."""

    def metrics(
        self, sums: Mapping[str, float], examples: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        """What is reported of the loss's sums over all examples."""

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: Any
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Further metrics, of what the model puts out, and the best output of each example; no
        outputs where the task has none."""

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


@dataclass(frozen=True)
class TaskKind:
    """An entry of the registry.

    Attributes:
      build: (the model's class, settings, size of each side's vocabulary, tokenizers) -> the task.
      texts: each side that has a tokenizer, and the parts of an example that it is to know.
      labels: each side that has a vocabulary of whole labels, and how its part of an example holds
        them.
      defaults: {"section.field": value} of configs of this task.
    """

    build: Callable[..., Task]
    texts: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, Callable[[str], Iterable[str]]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def require_model(settings: Any, wanted: Sequence[type], given: type) -> None:
    """Raises ValueError where the config's task asks for another architecture."""
    if given not in wanted:
        raise ValueError(
            f"task {settings.task.name} does not go with architecture "
            f"{settings.model.architecture!r}; "
            f"it asks for {' or '.join(one.__name__ for one in wanted)}"
        )
