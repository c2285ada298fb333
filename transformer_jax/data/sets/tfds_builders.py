"""Builders of TensorFlow Datasets, without TensorFlow (array_record files).

`data.tfds_name` names the builder, one of TFDS's own or of the user's. `data.dir` is TFDS's
data_dir; what is not prepared there is downloaded and prepared first.
"""

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.errors import UserError

_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def required(config: DataConfig, field: str) -> str:
    """The value of a field.

    Raises:
      UserError: it is not set.
    """
    if not (value := getattr(config, field)):
        raise UserError(f"data.{field} is not set: tfds needs it")
    return value


def library() -> Any:
    """The package tensorflow_datasets, with its older builders imported.

    Raises:
      UserError: it is not installed.
    """
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise UserError(
            f"data.name tfds asks for the extra [tfds], as in make setup EXTRAS=tfds ({error})"
        ) from error
    # Builders outside of its folder `datasets`, such as wmt14_translate and glue, are found only
    # once they are imported.
    for folder in ("summarization", "text", "translate"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{folder}")
    return tfds


def find_builder(tfds: Any, config: DataConfig, full_name: str) -> Any:
    """The builder `full_name`, `config.tfds_name` and perhaps a config of it.

    Raises:
      UserError: there is none.
    """
    try:
        return tfds.builder(full_name, data_dir=config.dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"data.tfds_name: no builder {config.tfds_name!r} ({reason})") from error


def read_split(builder: Any, config: DataConfig, split: str) -> Sequence[Any]:
    """TFDS's examples of a split, random access; downloaded and prepared first where need be.

    Raises:
      UserError: that fails, or there is no such split.
    """
    try:
        builder.download_and_prepare(file_format="array_record")
        return builder.as_data_source(split=_SPLITS[split])
    except Exception as error:  # of many libraries below
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"data.tfds_name {config.tfds_name}: split {_SPLITS[split]!r} cannot be had in "
            f"{builder.data_dir}: {reason}"
        ) from error


def as_text(value: bytes | str) -> str:
    """A text of an example; TFDS's own mock data, which tests use, is decoded already."""
    return value.decode() if isinstance(value, bytes) else value
