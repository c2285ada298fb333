"""The tensors of a directory, in safetensors files: read one by one, by name."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import METADATA_BYTES, is_safe_name, open_regular, read_regular

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
