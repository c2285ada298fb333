"""Between the tensors of a published model and the arrays of ours, by the links of its family."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.errors import UserError
from transformer_jax.interop.families import Family
from transformer_jax.interop.tensor_mapping import TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runtime.files import METADATA_BYTES, is_safe_name, open_regular, read_regular

# FOLDED interop.tensors: The tensors of a directory, in safetensors files: read one by one, by
# name.


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}


class Tensors(Mapping[str, tuple[int, ...]]):
    """The tensors of a directory: name -> shape, from the files' headers alone.

    Args:
      directory: holds `model.safetensors`, or shards of it with their index.

    Raises:
      UserError: there is none, a file is damaged, or a name stands in two files. Files that hold
        pickled objects are never opened: that would execute what they say.
    """

    def __init__(self, directory: Path):
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        for path in _weight_files(directory):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    if name in self._files:
                        raise UserError(f"{path}: {name!r} stands in {self._files[name].name} too")
                    self._files[name] = path
                    self._shapes[name] = tuple(file.get_slice(name).get_shape())
                    self._dtypes[name] = file.get_slice(name).get_dtype()

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32.

        Raises:
          UserError: it holds no floating-point numbers, or the file cannot be read.
        """
        self.require_weights(name)
        with _opened(self._files[name]) as file:
            return np.asarray(file.get_tensor(name), np.float32)

    def require_weights(self, name: str) -> None:
        """Raises UserError where a tensor holds no floating-point numbers."""
        if (dtype := self._dtypes[name]) not in _DTYPES:
            path = self._files[name]
            raise UserError(f"{path}: {name} is of dtype {dtype}, which holds no weights")

    def file_of(self, name: str) -> Path:
        """Where a tensor stands, for messages."""
        return self._files[name]


def write(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes contiguous tensors as one file that PyTorch's users can load."""
    save_file(dict(tensors), path, metadata={"format": "pt"})


def _weight_files(directory: Path) -> list[Path]:
    whole, index = directory / WEIGHTS, directory / INDEX
    if whole.exists():
        return [whole]
    if index.exists():
        return _shards(index)
    if pickles := sorted(path.name for one in _PICKLES for path in directory.glob(one)):
        raise UserError(
            f"{directory} holds {pickles[0]} and no {WEIGHTS}: a pickle can execute anything when "
            "it is loaded, and is not read; convert it with transformers (save_pretrained)"
        )
    raise UserError(f"{directory} holds no weights: {WEIGHTS} is missing")


def _shards(index: Path) -> list[Path]:
    try:
        content = json.loads(read_regular(index.resolve(), METADATA_BYTES))
        names: Any = sorted(set(content["weight_map"].values()))
        if not names or not all(map(_is_name_beside, names)):
            raise ValueError("it names no files beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} cannot be read: {_line(error)}; fetch it again") from error
    return [index.parent / name for name in names]


def _is_name_beside(name: str) -> bool:
    return "/" not in name and is_safe_name(name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; any error of its reader as a UserError of one line."""
    try:
        file_itself = path.resolve()  # in the hub's cache all files are links
        with open_regular(file_itself):  # no pipe, no device
            pass
        with safe_open(file_itself, framework="numpy") as file:
            yield file
    except (OSError, SafetensorError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} cannot be read: {_line(error)}; fetch it again") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or repr(error)


_OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
"""As TensorFlow named the arrays of norms, and the first published models still do."""
_ZERO = "logits_bias"


@dataclasses.dataclass(frozen=True)
class Found:
    """Which tensor holds which of our arrays.

    Attributes:
      tensors: of the directory.
      places: path of an array of ours -> its link, and the tensor's name in the directory.
      new: arrays that no tensor holds, of a head that the published model has not.
      left_out: tensors that no array of ours is, and none need be.
    """

    tensors: Tensors
    places: Mapping[str, tuple[TensorMapping, str]]
    new: Sequence[str]
    left_out: Sequence[str]

    def read(self, ours: str, shape: Sequence[int]) -> np.ndarray:
        """One of our arrays, float32."""
        link, name = self.places[ours]
        return np.ascontiguousarray(link.taken(self.tensors.read(name), shape))


def find(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any], tensors: Tensors
) -> Found:
    """Looks for all arrays of a model.

    Args:
      family: of the published model.
      model: the options that follow from its config.json.
      leaves: path -> shape (`.shape`) of each array of ours.
      tensors: of the published model.

    Raises:
      UserError: a tensor is missing, has another shape or is none of this model, or copies of one
        matrix differ.
    """
    names = _current_names(family, tensors)
    links = {link.ours: link for link in family.links(model) if link.ours in leaves}
    places: dict[str, tuple[TensorMapping, str]] = {}
    used, missing = set[str](), []
    for ours, leaf in leaves.items():
        present = [name for name in links[ours].theirs if name in names]
        if not present:
            missing.append(ours)
            continue
        used.update(present)
        actual = [names[name] for name in present]
        places[ours] = (links[ours], actual[0])
        _check_shape(links[ours], leaf.shape, actual[0], tensors)
        _check_copies(actual, tensors)
    new = _new(missing, links, leaves)
    others = [name for name in names if name not in used]
    left_out = [name for name in others if re.fullmatch(family.left_out, name)]
    if extra := [names[name] for name in others if name not in left_out]:
        raise UserError(
            f"{tensors.file_of(extra[0])} holds {extra[0]}, and a {family.model_type} model with "
            f"this config.json has no such tensor{_more(extra)}"
        )
    return Found(tensors, places, new, [names[name] for name in left_out])


def stored(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The tensors of a model by the names that the family has for them."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for link in family.links(model):
        if link.ours in leaves:
            array = link.stored(np.asarray(leaves[link.ours], np.float32))
            parts.setdefault(link.theirs[0], {})[link.part[0]] = array
    joined = {
        name: np.ascontiguousarray(np.concatenate([by_place[i] for i in sorted(by_place)], axis=-1))
        for name, by_place in parts.items()
    }
    return joined | dict(family.computed(model))


def _current_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """The name that the family has today for each tensor -> the one in the directory."""
    names = {}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    for name in tensors:
        current = f"{family.prefix}{name}" if bare else name
        for old, new in _OLD_NAMES:
            current = re.sub(old, new, current)
        names[current] = name
    return names


def _check_shape(link: TensorMapping, shape: Sequence[int], name: str, tensors: Tensors) -> None:
    tensors.require_weights(name)
    expected = link.stored_shape(shape)
    if tensors[name] != expected:
        raise UserError(
            f"{tensors.file_of(name)}: {name} has the shape {list(tensors[name])}; by config.json "
            f"it must be {list(expected)}"
        )


def _check_copies(names: Sequence[str], tensors: Tensors) -> None:
    """Raises UserError where a tied matrix is stored several times, and not alike."""
    for name in names[1:]:
        if not np.array_equal(tensors.read(name), tensors.read(names[0])):
            raise UserError(
                f"{tensors.file_of(name)}: {name} differs from {names[0]}, and by config.json they "
                "are one matrix"
            )


def _new(
    missing: Sequence[str], links: Mapping[str, TensorMapping], leaves: Mapping[str, Any]
) -> list[str]:
    """The arrays that are missing, if they may be: the whole of a head, and the bias of logits,
    which is 0 where a file has none; UserError otherwise."""
    head = {ours for ours in leaves if ours.startswith("prediction_head/")}
    may_miss = {_ZERO} | (head if head <= set(missing) else set())
    if lost := [ours for ours in missing if ours not in may_miss]:
        raise UserError(
            f"the weights have no tensor {links[lost[0]].theirs[0]}, which config.json asks for "
            f"({lost[0]}){_more(lost)}"
        )
    return list(missing)


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
