"""What a config may say: its sections, their fields, and the values that a field takes."""

import contextlib
import dataclasses
import difflib
import math
import sys
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import ParallelConfig
from transformer_jax.ranges import Seed, check_fields, shown
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.training.config import TrainConfig
from transformer_jax.training.evaluation import EvalConfig
from transformer_jax.training.lora import LoraConfig
from transformer_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Settings:
    """A whole config, one dataclass per section.

    Attributes:
      task: the task.
      model: architecture and sizes.
      tokenizer: how text becomes tokens.
      data: data sets, and maximal sequence lengths.
      optimizer: the optimizer and its learning rate.
      lora: low-rank adapters beside frozen parameters.
      train: length of training and size of its batches.
      eval: evaluation during training.
      decode: how outputs are searched for, in evaluation and prediction.
      parallel: how devices share the work.
      checkpoint: when to save, and how much to keep.
      logging: what is logged.
      seed: seed of the initial parameters and of dropout, and of the data order unless
        `data.order_seed` is set.
    """

    task: TaskConfig
    model: ModelConfig
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    lora: LoraConfig
    train: TrainConfig
    eval: EvalConfig
    decode: DecodeConfig
    parallel: ParallelConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def order_seed(self) -> int:
        """What decides the order of the training data."""
        return self.seed if self.data.order_seed is None else self.data.order_seed


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of the config.

    Attributes:
      type: of its values.
      optional: whether it may be None too.
      default: its value where nothing else is said.
    """

    type: type
    optional: bool
    default: Any


SECTIONS: dict[str, type] = {
    name: hint for name, hint in typing.get_type_hints(Settings).items() if name != "seed"
}


def _fields_of(section: str, cls: type) -> dict[str, Field]:
    """The fields of a dataclass that a config sets, by their names, "section.field"."""
    fields = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.metadata.get("given"):
            continue
        hint = hints[field.name]
        type_, *none = typing.get_args(hint) or (hint,)  # of `int | None` and of `int`
        fields[f"{section}.{field.name}"] = Field(type_, bool(none), field.default)
    return fields


FIELDS: dict[str, Field] = {
    name: field for item in SECTIONS.items() for name, field in _fields_of(*item).items()
} | {"seed": Field(int, optional=False, default=0)}
"""All fields of a config by their names, "section.field"."""

DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}
"""Of every field, whatever the task and the architecture are."""


FORMER = {"train.remat": {True: "full", False: "none"}}
"""Fields that were true or false in earlier versions, whose configs and workdirs still read."""


def parsed(values: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """{"section.field": value} with each value as the type of its field.

    Args:
      values: texts, as a shell gives them, are read where the field is not a text.
      where: what the values are of, for the message.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    return {name: _parse(name, value, where) for name, value in values.items()}


def _parse(name: Any, value: Any, where: str) -> Any:
    field = _find_field(name, where)
    if isinstance(value, np.generic):
        value = value.item()
    read = _read_text(value) if isinstance(value, str) else value
    if read is None and field.optional:
        return None
    if type(read) is bool and name in FORMER:
        return FORMER[name][read]
    if field.type is not str:
        value = read
    if field.type is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    if type(value) is not field.type:  # True is an int to isinstance
        raise UserError(
            f"{where}: config.{name} is {shown(value)}; it must be of type {field.type.__name__}"
        )
    return value


def _find_field(name: Any, where: str) -> Field:
    if name in FIELDS:
        return FIELDS[name]
    if name in SECTIONS:
        raise UserError(f"{where}: config.{name} is a section; set one of its fields")
    known = [*SECTIONS, *FIELDS]
    nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0)[0]
    raise UserError(f"{where}: there is no config.{name}; did you mean config.{nearest}?")


def _read_text(text: str) -> Any:
    """What a text stands for: none, true, false or a finite number; else the text itself."""
    word = text.strip().lower()
    words = {"none": None, "true": True, "false": False}
    if word in words:
        return words[word]
    with contextlib.suppress(ValueError):
        return int(word)
    with contextlib.suppress(ValueError):
        number = float(word)
        return number if math.isfinite(number) else text
    return text
