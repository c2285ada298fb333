"""Where an array of a model stands in a published file, and how it is laid out there."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.nn.parameters import parameter_at


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """One of our arrays and the tensor that holds it.

    Attributes:
      ours: its path, as "encoder/layer_0/feed_forward/inner/kernel".
      theirs: names of the tensor. Files hold one of them or several, equal ones, as where matrices
        are tied; the first is written.
      transposed: whether the matrix of a linear map is stored [outputs, inputs], as PyTorch does.
      part: (i, n): it is the i-th of n equal parts along the last axis.
      leading: axes of size 1 that stand before the others.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = True
    part: tuple[int, int] = (0, 1)
    leading: int = 0

    def stored_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of the tensor, all its parts together, that holds our array of this shape."""
        *rest, last = self._turned(self._flat(shape))
        return (*(1,) * self.leading, *rest, last * self.part[1])

    def taken(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Our array, of this shape, from the tensor; a view where that can be."""
        part = np.split(tensor, self.part[1], axis=-1)[self.part[0]]
        flat = part.reshape(self._turned(self._flat(shape)))
        return (flat.T if self._is_turned else flat).reshape(shape)

    def stored(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `taken`: the tensor, or this part of it."""
        flat = array.reshape(self._flat(array.shape))
        flat = flat.T if self._is_turned else flat
        return flat.reshape((1,) * self.leading + flat.shape)

    @property
    def _is_turned(self) -> bool:
        return self.transposed and self._input_axes > 0

    @property
    def _input_axes(self) -> int:
        """Of a linear map, how many of the axes are its inputs; 0 of anything else."""
        entry = parameter_at(self.ours)
        return entry.input_axes if entry is not None and entry.is_linear else 0

    def _flat(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Our array as a matrix, if it is a linear map, with the heads' biases as one vector."""
        if inputs := self._input_axes:
            return math.prod(shape[:inputs]), math.prod(shape[inputs:])
        return (math.prod(shape),) if self.ours.endswith("bias") else tuple(shape)

    def _turned(self, flat: tuple[int, ...]) -> tuple[int, ...]:
        return flat[::-1] if self._is_turned else flat


def linear(ours: str, *theirs: str) -> Iterator[TensorMapping]:
    """A linear map: its matrix, and its bias where it has one."""
    yield TensorMapping(f"{ours}/kernel", tuple(f"{name}.weight" for name in theirs))
    yield TensorMapping(f"{ours}/bias", tuple(f"{name}.bias" for name in theirs))


def norm(ours: str, *theirs: str) -> Iterator[TensorMapping]:
    """A norm: its scale, and its bias where it has one."""
    yield TensorMapping(f"{ours}/scale", tuple(f"{name}.weight" for name in theirs))
    yield TensorMapping(f"{ours}/bias", tuple(f"{name}.bias" for name in theirs))


def attention(ours: str, theirs: str, names: Sequence[str]) -> Iterator[TensorMapping]:
    """The four maps of an attention; `names` of query, key, value and output, below `theirs`."""
    for own, name in zip(("query", "key", "value", "output"), names, strict=True):
        yield from linear(f"{ours}/{own}", f"{theirs}.{name}")


def table(ours: str, *theirs: str) -> TensorMapping:
    """A table of vectors, laid out alike."""
    return TensorMapping(ours, theirs)
