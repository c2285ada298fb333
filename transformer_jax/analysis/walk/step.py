"""Steps of a walk: what is computed, where the paper and the code have it, and the numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.analysis.walk.catalogue import Where

_PLURALS = {"query": "queries", "vocabulary entry": "vocabulary entries"}


@dataclasses.dataclass(frozen=True)
class Axis:
    """What an axis of an array counts.

    Attributes:
      name: of one of them, such as "token" or "feature".
      labels: each of them as it is called; empty: they are counted.
    """

    name: str
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing that a model computes for one example.

    Attributes:
      kind: an entry of `catalogue.KINDS`.
      group: where in the model, from the outside in: ("encoder", "layer 0", "self-attention").
      title: a few words.
      formula: in linear notation (`formulas.parsed`).
      section: of "Attention Is All You Need", or the source of what grew out of it.
      where: the code that computes it.
      explanation: what happens, with these numbers.
      values: the result, one axis for each of `axes`; -inf is what a mask removed.
      axes: what its axes count.
      example: the indices along the first axes of what the explanation speaks of.
      places: names of the values (`nn.places`) that it shows or is made from.
    """

    kind: str
    group: tuple[str, ...]
    title: str
    formula: str
    section: str
    where: Where
    explanation: str
    values: np.ndarray
    axes: tuple[Axis, ...]
    example: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """Such as "4 heads × 9 queries × 9 keys"."""
        sizes = zip(self.values.shape, self.axes, strict=True)
        return " × ".join(f"{size:,} {_plural(axis.name, size)}" for size, axis in sizes)


def _plural(name: str, size: int) -> str:
    return name if size == 1 else _PLURALS.get(name, f"{name}s")


@dataclasses.dataclass(frozen=True)
class Walk:
    """All steps of one example, in the order in which they are computed.

    Attributes:
      texts: what was read and written, by its name: "source" and "target", or "text".
      steps: all of them, with all numbers.
    """

    texts: Mapping[str, str]
    steps: Sequence[Step]

    def of(self, kind: str, *group: str) -> list[Step]:
        """The steps of a kind, of groups that begin like this."""
        return [
            step for step in self.steps if step.kind == kind and step.group[: len(group)] == group
        ]
