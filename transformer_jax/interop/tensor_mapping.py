# SPDX-License-Identifier: Apache-2.0
"""Maps each array of a model to its tensor in a published file: the tensor's name and layout."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.nn.parameters import parameter_at


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """An array of ours, and the tensor that contains it.

    Attributes:
      path: of the array, such as "encoder/layer_0/feed_forward/inner/kernel".
      names: of the tensor. A file has one or more of them, with equal content if there are several
        (tied matrices). The first is written.
      transposed: True if a linear map's matrix is stored as [outputs, inputs], as in PyTorch.
      part: (i, n): the array is the i-th of n parts of the tensor: equal parts of its last axis,
        unless there are `sizes`.
      sizes: length of each part along the tensor's first axis, the outputs of linear maps.
      heads: number of heads; among these outputs, each has all its parts in turn.
      offset: the array is the tensor plus this: scales of norms may be stored as their distance
        from 1.
      leading_axes: number of axes of size 1 before the others.
    """

    path: str
    names: tuple[str, ...]
    transposed: bool = True
    part: tuple[int, int] = (0, 1)
    sizes: tuple[int, ...] = ()
    heads: int = 1
    offset: float = 0.0
    leading_axes: int = 0

    def tensor_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the whole tensor, given the shape of our array."""
        stored = self._stored_shape(self._flat_shape(shape))
        if self.sizes:
            return (self.heads * sum(self.sizes), *stored[1:])
        *rest, last = stored
        return (*(1,) * self.leading_axes, *rest, last * self.part[1])

    def to_array(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Our array, of the given shape, from the tensor; a view if possible."""
        if self.sizes:
            by_head = tensor.reshape(self.heads, -1, *tensor.shape[1:])
            part = np.split(by_head, np.cumsum(self.sizes)[:-1], axis=1)[self.part[0]]
        else:
            part = np.split(tensor, self.part[1], axis=-1)[self.part[0]]
        flat = part.reshape(self._stored_shape(self._flat_shape(shape)))
        flat = flat + np.float32(self.offset) if self.offset else flat
        return (flat.T if self._is_transposed else flat).reshape(shape)

    def to_tensor(self, array: np.ndarray) -> np.ndarray:
        """The tensor, or its part, from our array; the inverse of `to_array`."""
        flat = array.reshape(self._flat_shape(array.shape))
        flat = flat - np.float32(self.offset) if self.offset else flat
        flat = flat.T if self._is_transposed else flat
        return flat.reshape((1,) * self.leading_axes + flat.shape)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The whole tensor from its parts, as `to_tensor` returns them, in their order."""
        if not self.sizes:
            return np.concatenate(parts, axis=-1)
        by_head = [part.reshape(self.heads, -1, *part.shape[1:]) for part in parts]
        return np.concatenate(by_head, axis=1).reshape(-1, *parts[0].shape[1:])

    @property
    def _is_transposed(self) -> bool:
        return self.transposed and self._num_input_axes > 0

    @property
    def _num_input_axes(self) -> int:
        """Number of input axes of a linear map's kernel; 0 for any other array."""
        entry = parameter_at(self.path)
        return entry.input_axes if entry is not None and entry.is_linear else 0

    def _flat_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """[inputs, outputs] for a kernel, one axis for a bias, unchanged for other arrays."""
        inputs = self._num_input_axes
        if inputs:
            return math.prod(shape[:inputs]), math.prod(shape[inputs:])
        return (math.prod(shape),) if self.path.endswith("bias") else tuple(shape)

    def _stored_shape(self, flat: tuple[int, ...]) -> tuple[int, ...]:
        return flat[::-1] if self._is_transposed else flat


def map_linear(path: str, *names: str) -> Iterator[TensorMapping]:
    """Kernel and bias of a linear map. A map without bias ignores the second."""
    yield TensorMapping(f"{path}/kernel", tuple(f"{name}.weight" for name in names))
    yield TensorMapping(f"{path}/bias", tuple(f"{name}.bias" for name in names))


def map_joined(
    paths: Sequence[str], sizes: Sequence[int], name: str, heads: int = 1
) -> Iterator[TensorMapping]:
    """Kernels of linear maps of the same input whose outputs, of these sizes, share a tensor, head
    by head."""
    for i, path in enumerate(paths):
        tensor = (f"{name}.weight",)
        part = (i, len(paths))
        yield TensorMapping(f"{path}/kernel", tensor, part=part, sizes=tuple(sizes), heads=heads)


def map_norm(path: str, *names: str) -> Iterator[TensorMapping]:
    """Scale and bias of a norm. A norm without bias ignores the second."""
    yield TensorMapping(f"{path}/scale", tuple(f"{name}.weight" for name in names))
    yield TensorMapping(f"{path}/bias", tuple(f"{name}.bias" for name in names))


def map_attention(path: str, prefix: str, names: Sequence[str]) -> Iterator[TensorMapping]:
    """Linear maps of an attention layer; `names` of query, key, value and output after `prefix`."""
    for projection, name in zip(("query", "key", "value", "output"), names, strict=True):
        yield from map_linear(f"{path}/{projection}", f"{prefix}.{name}")


def map_table(path: str, *names: str) -> TensorMapping:
    """Embedding table; its layout is the same in both."""
    return TensorMapping(path, names)
