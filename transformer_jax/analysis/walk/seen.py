"""What the steps of a walk are made from, and how they speak of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.analysis.reading import Reading
from transformer_jax.analysis.walk.catalogue import KINDS
from transformer_jax.analysis.walk.step import Axis, Step
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.tokenization import Labels, Tokenizer


@dataclasses.dataclass(frozen=True)
class Seen:
    """One example, and what a model computed for it.

    Attributes:
      model: the model; `config` is that of its body.
      params: of the model.
      reading: the example.
      values: all places (`analysis.collecting`).
      outputs: the vocabulary of what the model predicts.
    """

    model: Any
    params: Any
    config: TransformerConfig
    reading: Reading
    values: Mapping[str, np.ndarray]
    outputs: Tokenizer | Labels

    def name_of(self, output: int) -> str:
        """A token that is predicted, as its vocabulary writes it, or a label."""
        if isinstance(self.outputs, Labels):
            return self.outputs.names[output]
        return self.outputs.pieces([output])[0]

    @property
    def mask(self) -> int | None:
        """The token that stands for hidden ones, where there is one."""
        return None if isinstance(self.outputs, Labels) else self.outputs.specials.mask

    def tokens(self, stack: str, name: str = "token") -> Axis:
        """An axis of the tokens that a stack reads."""
        return Axis(name, tuple(self.reading.pieces[stack]))

    def example(self, stack: str) -> int:
        """The token that explanations speak of: the one in the middle."""
        return len(self.reading.tokens[stack]) // 2

    def token(self, stack: str, index: int) -> str:
        """A token and its number, for sentences."""
        return f"{quoted(self.reading.pieces[stack][index])} ({index})"


def quoted(text: str) -> str:
    """In quotation marks, isolated so that its direction does not turn what stands around it."""
    return f"“\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}”"


def number(x: float) -> str:
    """With three digits."""
    return f"{x:.3g}".replace("-", "−")


def some(values: np.ndarray) -> str:
    """The first numbers of a vector."""
    first = ", ".join(map(number, values[:3].tolist()))
    return f"({first}, …)" if len(values) > 3 else f"({first})"


def step(
    kind: str,
    group: tuple[str, ...],
    explanation: str,
    values: np.ndarray,
    axes: Sequence[Axis | str],
    places: Sequence[str] = (),
    example: Sequence[int] = (),
    **instead: Any,
) -> Step:
    """A step; `instead` replaces what the catalogue says of its kind."""
    shared = KINDS[kind]._asdict() | {name: of for name, of in instead.items() if of is not None}
    named = tuple(axis if isinstance(axis, Axis) else Axis(axis) for axis in axes)
    return Step(
        kind=kind,
        group=group,
        explanation=explanation,
        values=values,
        axes=named,
        places=tuple(places),
        example=tuple(map(int, example)),
        **shared,
    )
