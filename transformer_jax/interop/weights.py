# SPDX-License-Identifier: Apache-2.0
"""Reads and writes safetensors files, and converts between their tensors and our arrays."""

import collections
import contextlib
import dataclasses
import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.errors import UserError, reason_of
from transformer_jax.interop.config_json import read_json
from transformer_jax.interop.families import Family
from transformer_jax.interop.families.base import TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.runtime.files import is_safe_name, open_regular, path_of_published

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
_DTYPES = ("F64", "F32", "F16", "BF16")
_OLD_SUFFIXES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
"""Suffix of norm tensors in files of the first models, named as in TensorFlow -> suffix today."""


class Tensors(dict[str, tuple[int, ...]]):
    """Tensors of a directory: name -> shape. Reads only the headers of the files.

    Args:
      directory: with `model.safetensors`, or its shards and their index.

    Attributes:
      files: name -> file.

    Raises:
      UserError: there are no weights, a file is damaged, or two files contain the same name. Pickle
        files are never opened, because loading one can execute anything.
    """

    def __init__(self, directory: Path):
        super().__init__()
        self.files: dict[str, Path] = {}
        for path in _weight_files(directory):
            with _open(path) as file:
                for name in file.keys():  # noqa: SIM118 (`file` is not a mapping)
                    if name in self.files:
                        raise UserError(f"{path}: {name!r} is in {self.files[name].name} too")
                    self.files[name] = path
                    self[name] = tuple(file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """Reads a tensor as float32.

        Raises:
          UserError: its dtype is not a floating-point type, or the file cannot be read.
        """
        path = self.files[name]
        with _open(path) as file:
            dtype = file.get_slice(name).get_dtype()
            if dtype not in _DTYPES:
                raise UserError(
                    f"{path}: {name} has dtype {dtype}; weights must be {', '.join(_DTYPES)}"
                )
            return np.asarray(file.get_tensor(name), np.float32)


def save_tensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes contiguous tensors to a safetensors file, marked as PyTorch's.

    Raises:
      OSError: the file cannot be written, for example because the disk is full.
    """
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(errno.EIO, reason_of(error), str(path)) from error


def _weight_files(directory: Path) -> list[Path]:
    whole = directory / WEIGHTS
    if whole.exists():
        return [whole]
    index = directory / INDEX
    if index.exists():
        return _shards(index)
    pickles = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickles:
        raise UserError(
            f"{directory} has {pickles[0]} but no {WEIGHTS}: pickles are not read, because loading "
            "one can execute anything; convert it with transformers (save_pretrained)"
        )
    raise UserError(f"{directory} has no weights: {WEIGHTS} is missing")


def _shards(index: Path) -> list[Path]:
    files = read_json(index).get("weight_map")
    names = sorted(map(str, set(files.values()))) if isinstance(files, dict) else []
    if not names or not all("/" not in name and is_safe_name(name) for name in names):
        raise UserError(f"{index} cannot be read: it names no files of its folder; fetch it again")
    return [index.parent / name for name in names]


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Opens a safetensors file. Turns any error of the reader into a UserError of one line."""
    try:
        target = path_of_published(path)
        with open_regular(target):  # rejects pipes and devices
            pass
        with safe_open(target, framework="numpy") as file:
            yield file
    except (OSError, SafetensorError, ValueError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} cannot be read: {reason_of(error)}; fetch it again") from error


@dataclasses.dataclass(frozen=True)
class MatchedTensors:
    """Arrays of our model, matched with the tensors of a directory.

    Attributes:
      tensors: of the directory.
      matches: path of an array -> its mapping, and the tensor's name in the directory.
      new: paths of arrays without a tensor: a head that the published model does not have.
      ignored: tensors that no array needs.
    """

    tensors: Tensors
    matches: Mapping[str, tuple[TensorMapping, str]]
    new: Sequence[str]
    ignored: Sequence[str]

    def read(self, path: str, shape: Sequence[int], allow_nonfinite: bool = False) -> np.ndarray:
        """Reads one of our arrays as float32.

        Raises:
          UserError: as `Tensors.read`, or the array has NaN or infinity, and it may not.
        """
        parameter = parameter_at(path)
        if parameter is not None and parameter.kind == "matrices":
            paths = [f"{path}/{i}" for i in range(shape[0])]
            return np.stack([self.read(matrix, shape[1:], allow_nonfinite) for matrix in paths])
        mapping, name = self.matches[path]
        array = np.ascontiguousarray(mapping.to_array(self.tensors.read(name), shape))
        if not (allow_nonfinite or np.isfinite(array).all()):
            count = array.size - np.count_nonzero(np.isfinite(array))
            raise UserError(
                f"{self.tensors.files[name]}: {name!r} has {count:,} values that are NaN or "
                "infinite; the file is damaged, or --allow_nonfinite imports it as it is"
            )
        return array


def _single_matrices(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves, or their shapes, with each array of several matrices replaced by its matrices.

    Published files have one tensor for each.
    """
    single = {}
    for path, leaf in leaves.items():
        parameter = parameter_at(path)
        if parameter is None or parameter.kind != "matrices":
            single[path] = leaf
            continue
        is_array = isinstance(leaf, np.ndarray | jax.Array)
        matrix_shape = jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        for i in range(leaf.shape[0]):
            single[f"{path}/{i}"] = leaf[i] if is_array else matrix_shape
    return single


def match_tensors(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any], tensors: Tensors
) -> MatchedTensors:
    """Finds the tensor of each array of a model.

    Args:
      family: of the published model.
      model: options that follow from its config.json.
      leaves: arrays by path, or their shapes (`.shape`).

    Raises:
      UserError: a tensor is missing, has a wrong shape or does not belong to this model, or copies
        of a tied matrix differ.
    """
    names = _current_names(family, tensors)
    leaves = _single_matrices(leaves)
    mappings = family.mappings_by_path(model)
    matches: dict[str, tuple[TensorMapping, str]] = {}
    used: set[str] = set()
    missing = []
    for path, leaf in leaves.items():
        present = [name for name in mappings[path].names if name in names]
        if not present:
            missing.append(path)
            continue
        used.update(present)
        actual = [names[name] for name in present]
        matches[path] = (mappings[path], actual[0])
        expected = mappings[path].tensor_shape(leaf.shape)
        if tensors[actual[0]] != expected:
            raise UserError(
                f"{tensors.files[actual[0]]}: {actual[0]} has the shape "
                f"{list(tensors[actual[0]])}; by config.json it must be {list(expected)}"
            )
        _check_copies(actual, tensors)
    new = _check_missing(missing, mappings, leaves)
    others = [name for name in names if name not in used]
    ignored = [name for name in others if re.fullmatch(family.ignored_tensors, name)]
    extra = [names[name] for name in others if name not in ignored]
    if extra:
        raise UserError(
            f"{tensors.files[extra[0]]} has {extra[0]}, and a {family.model_type} model with "
            f"this config.json has no such tensor{_and_more(extra)}"
        )
    return MatchedTensors(tensors, matches, new, [names[name] for name in ignored])


def to_tensors(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Converts our arrays to the tensors of a family, by name."""
    leaves = _single_matrices(leaves)
    groups: collections.defaultdict[str, list[TensorMapping]] = collections.defaultdict(list)
    for path, mapping in family.mappings_by_path(model).items():
        if path in leaves:
            groups[mapping.names[0]].append(mapping)
    tensors = dict(family.constant_tensors(model))
    for name, group in groups.items():
        group.sort(key=lambda mapping: mapping.part)
        parts = [np.asarray(leaves[mapping.path], np.float32) for mapping in group]
        tensors[name] = np.ascontiguousarray(group[0].to_tensor(parts))
    return tensors


def _current_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """Each tensor's name in current files of the family -> its name in the directory."""
    names = {}
    lacks_prefix = not any(name.startswith(family.prefix) for name in tensors)
    for name in tensors:
        current = f"{family.prefix}{name}" if lacks_prefix else name
        for old, new in _OLD_SUFFIXES:
            current = re.sub(old, new, current)
        names[current] = name
    return names


def _check_copies(names: Sequence[str], tensors: Tensors) -> None:
    """Raises UserError if the copies of a tied matrix differ."""
    for name in names[1:]:
        if not np.array_equal(tensors.read(name), tensors.read(names[0])):
            path = tensors.files[name]
            raise UserError(f"{path}: {name} differs from {names[0]}, and config.json ties them")


def _check_missing(
    missing: Sequence[str], mappings: Mapping[str, TensorMapping], leaves: Mapping[str, Any]
) -> list[str]:
    """Paths of arrays without a tensor. Raises UserError if one of them is required.

    A file may lack the whole of a head, and the bias of logits, which is then 0.
    """
    head = {path for path in leaves if path.startswith("prediction_head/")}
    allowed = {"logits_bias"} | (head if head <= set(missing) else set())
    required = [path for path in missing if path not in allowed]
    if required:
        raise UserError(
            f"the weights have no tensor {mappings[required[0]].names[0]}, which config.json "
            f"requires ({required[0]}){_and_more(required)}"
        )
    return list(missing)


def _and_more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
