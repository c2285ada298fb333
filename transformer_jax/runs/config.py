"""Config files: read, completed with defaults, overridden, and turned into dataclasses.

A config file is Python with a `get_config()` that returns an `ml_collections.ConfigDict` of
sections; what it leaves out has the defaults of the dataclass that its section becomes. This is
the only reader of a ConfigDict.
"""

import copy
import dataclasses
import difflib
import functools
import json
import runpy
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.checkpoints.store import CheckpointConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.parallel.mesh import ParallelConfig
from transformer_jax.runs.modules import Modules, load_modules
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.training.evaluation import EvalConfig
from transformer_jax.training.loop import TrainConfig
from transformer_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class Settings:
    """A whole config, each section as the dataclass beside its owner."""

    task: TaskConfig
    model: TransformerConfig
    tokenizer: TokenizerConfig
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    eval: EvalConfig
    decode: DecodeConfig
    parallel: ParallelConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    seed: int = 0

    @property
    def order_seed(self) -> int:
        """What decides the order of the training data."""
        return self.seed if self.data.order_seed is None else self.data.order_seed


SECTIONS: dict[str, type] = {
    name: hint for name, hint in typing.get_type_hints(Settings).items() if name != "seed"
}
FIXED = ("task", "model", "tokenizer", "data", "optimizer", "train", "seed")
"""What a run keeps for life, but for `data.dir` and a growing `train.num_steps`."""


def load_config(
    path: str | Path, overrides: Mapping[str, Any] | None = None, modules: Modules = ()
) -> ConfigDict:
    """Reads a config file and sets `overrides`, {"section.field": value}; texts are parsed.

    The user's own `modules`, with components that the config names, are loaded before.

    Raises:
      UserError: no such file, it fails or has no get_config, or an unknown field (the nearest is
        named) or a value of the wrong type, in the file or in `overrides`; a module that fails.
    """
    load_modules(modules)
    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}; see configs/ for what there is")
    try:
        names = runpy.run_path(str(path))
        given = names["get_config"]().to_dict() if "get_config" in names else None
    except Exception as error:
        raise UserError(f"config file {path} fails: {type(error).__name__}: {error}") from error
    if given is None:
        raise UserError(f"config file {path} defines no get_config()")
    config = override(complete_config(given, str(path)), overrides or {})
    read_settings(config)
    return config


def override(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy with other values, {"section.field": value}; texts are parsed.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    config = copy.deepcopy(config)
    for name, value in overrides.items():
        _set(config, name, value, "override")
    return config


def complete_config(given: Mapping[str, Any], where: str) -> ConfigDict:
    """The defaults of all sections with the values of `given`, {section: {field: value}}, set."""
    config = _defaults()
    for section, values in given.items():
        _check_known(config, section, where)
        if isinstance(values, Mapping):
            for field, value in values.items():
                _set(config, f"{section}.{field}", value, where)
        else:
            _set(config, section, values, where)
    return config


def read_settings(config: ConfigDict) -> Settings:
    """Turns each section into its dataclass.

    Raises:
      UserError: a value that its dataclass refuses; section and reason are named.
    """
    if not 0 <= config.seed < 2**31:
        raise UserError(f"config.seed is {config.seed}; it must lie in [0, 2^31)")
    sections = {}
    for name, cls in SECTIONS.items():
        try:
            sections[name] = cls(**config[name].to_dict())
        except ValueError as error:
            raise UserError(f"config.{name}: {error}") from error
    return Settings(**sections, seed=config.seed)


def load_json(path: Path) -> ConfigDict:
    """The config that `save_json` wrote. Raises UserError where the file is missing or damaged."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no run: {path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is damaged: it holds no object")
    return complete_config(given, str(path))


def save_json(config: ConfigDict, path: Path) -> None:
    """Writes a config, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def check_same_run(config: ConfigDict, kept: ConfigDict, workdir: Path) -> None:
    """Raises UserError, naming the first difference, unless `config` is that of `workdir`'s run."""
    for section in FIXED:
        fields = dataclasses.fields(SECTIONS[section]) if section in SECTIONS else ()
        names = [f"{section}.{field.name}" for field in fields if _is_set_by_config(field)]
        for name in names or [section]:
            old, new = _get(kept, name), _get(config, name)
            grows = name == "train.num_steps" and new > old
            if old != new and not grows and name != "data.dir":
                raise UserError(
                    f"{workdir} holds another run: its {name} is {old!r}, the config's is {new!r}; "
                    "choose another --workdir or the same value"
                )


def _is_set_by_config(field: dataclasses.Field) -> bool:
    return not field.metadata.get("given")


def _defaults() -> ConfigDict:
    config = ConfigDict({"seed": 0})
    for section, cls in SECTIONS.items():
        config[section] = ConfigDict()
        for field in filter(_is_set_by_config, dataclasses.fields(cls)):
            missing = field.default is None
            of_type = _types(section, field.name)[0]
            config[section][field.name] = (
                config_dict.placeholder(of_type) if missing else field.default
            )
    return config


def _get(config: ConfigDict, name: str) -> Any:
    section, _, field = name.partition(".")
    return config[section][field] if field else config[section]


def _set(config: ConfigDict, name: str, value: Any, where: str) -> None:
    _check_known(config, name, where)
    section, _, field = name.partition(".")
    if not field and section in SECTIONS:
        raise UserError(f"{where}: config.{name} is a section; set one of its fields")
    types_ = _types(section, field) if field else (int,)
    value = _parse(value, types_, name, where)
    target = config[section] if field else config
    with target.ignore_type():
        target[field or section] = value


def _check_known(config: ConfigDict, name: str, where: str) -> None:
    known = ["seed", *SECTIONS] + [f"{s}.{field}" for s in SECTIONS for field in config[s]]
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
    raise UserError(f"{where}: there is no config.{name}; did you mean config.{nearest}?")


@functools.cache
def _types(section: str, field: str) -> tuple[type, ...]:
    """The types that a field takes, NoneType among them where it is optional."""
    hint = typing.get_type_hints(SECTIONS[section])[field]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _parse(value: Any, allowed: tuple[type, ...], name: str, where: str) -> Any:
    """`value` as one of the types `allowed`; texts, as a shell gives them, are parsed."""
    if value is None and types.NoneType in allowed:
        return None
    if isinstance(value, str) and str not in allowed:
        try:
            value = json.loads(value.lower().replace("none", "null").replace("_", ""))
        except ValueError:
            value = value  # the check below names it
        if value is None and types.NoneType in allowed:
            return None
    elif isinstance(value, str) and value.lower() == "none" and types.NoneType in allowed:
        return None
    wanted = allowed[0]
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        raise UserError(
            f"{where}: config.{name} is {value!r}; it must be of type {wanted.__name__}"
        )
    return value
