"""Configs: completed with defaults, overridden, and turned into dataclasses.

A config is an `ml_collections.ConfigDict` of sections, one for each dataclass of `Settings`. A
config file names the fields in which a run differs from the defaults. This and `config_file` are
the only readers of a ConfigDict.
"""

import copy
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.runs.choices import CHOICES
from transformer_jax.runs.config_file import run_config_file
from transformer_jax.runs.consistency import check_sections
from transformer_jax.runs.effects import refuse_unread, unread_fields
from transformer_jax.runs.modules import Modules, load_modules
from transformer_jax.runs.origin import model_options
from transformer_jax.runs.settings import DEFAULTS, FIELDS, SECTIONS, Settings, parsed
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_whole
from transformer_jax.tasks import TASKS

FIXED = ("task", "model", "tokenizer", "data", "optimizer", "lora", "train", "seed")
"""What a run keeps for life, but for `FREE` and growing `train.num_steps`, `decay_steps`."""
FREE = (
    *("data.dir", "data.cache_dir", "data.num_workers", "model.attention", "model.scan_layers"),
    *("train.on_spike", "train.spike_factor"),
)


def load_config(
    path: str | Path, overrides: Mapping[str, Any] | None = None, modules: Modules = ()
) -> ConfigDict:
    """Reads a config file and sets `overrides`, {"section.field": value}; texts are parsed.

    What neither sets has its default for the task and the architecture (`defaults_for`).
    The user's own `modules`, with components that the config names, are loaded before.

    Raises:
      UserError: no such file, it fails or has no get_config, or an unknown field (the nearest is
        named) or a value of the wrong type, in the file or in `overrides`; a module that fails.
    """
    load_modules(modules)
    given = parsed(overrides or {}, "override")
    chosen = _still_read(_checked(run_config_file(path), str(path)), given) | given
    config = config_of(chosen, "config")
    check_trainable(config)
    _require_modules(config)
    return config


def config_of(chosen: Mapping[str, Any], where: str) -> ConfigDict:
    """The config that sets the fields of `chosen`, {"section.field": value}; the others have their
    defaults for its task and architecture. UserError as `parsed`, with `where` in it."""
    chosen = parsed(chosen, where)
    return _to_config_dict(defaults_for(chosen) | chosen)


def _still_read(chosen: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The fields that a config file sets, without those that nothing reads because of `overrides`:
    who exchanges the positions need not take back the options of the file's own."""
    before = defaults_for(chosen) | chosen
    after = defaults_for(chosen | overrides) | chosen | overrides
    idle = unread_fields(after).keys() - unread_fields(before).keys()
    return {name: value for name, value in chosen.items() if name not in idle}


def check_trainable(config: ConfigDict) -> Settings:
    """The settings of a config that is to be trained; `read_settings` will do for what was trained.

    Raises:
      UserError: as `read_settings`, a field differs from its default and nothing reads it, or
        sections do not go together (`runs.consistency`).
    """
    settings, values = read_settings(config), flattened(config)
    own = defaults_for(values)
    differ = [name for name in FIELDS if values[name] not in (own[name], DEFAULTS[name])]
    refuse_unread(values, differ)
    check_sections(settings)
    return settings


def defaults_for(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every field in a config that sets those of `chosen`, {"section.field": value}.

    The dataclasses' defaults, above them those of the task, which may bring its architecture, above
    both those of the architecture, and above all the model of the run to start from. An unknown
    name has none: who builds it refuses it.
    """
    defaults = dict(DEFAULTS)
    task = {**defaults, **chosen}["task.name"]
    if task in TASKS:
        defaults |= parsed(TASKS[task].defaults, f"defaults of task {task}")
    architecture = {**defaults, **chosen}["model.architecture"]
    if architecture in MODELS:
        own = getattr(MODELS[architecture], "defaults", {})  # a user's class may have none
        defaults |= parsed(own, f"defaults of architecture {architecture}")
    origin = chosen.get("train.init_from")
    options = model_options(origin, chosen.get("model.architecture"))
    return defaults | parsed(options, f"{origin}/config.json")


def override(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy with other values, {"section.field": value}; texts are parsed.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    config = copy.deepcopy(config)
    for name, value in parsed(overrides, "override").items():
        _set(config, name, value)
    return config


def complete_config(given: Mapping[str, Any], where: str) -> ConfigDict:
    """The dataclasses' defaults with the values of `given`, {section: {field: value}}, set."""
    return _to_config_dict(DEFAULTS | _checked(given, where))


def read_settings(config: ConfigDict) -> Settings:
    """Turns each section into its dataclass.

    Raises:
      UserError: a value that its dataclass refuses; section and reason are named.
    """
    sections = {}
    for name, cls in SECTIONS.items():
        try:
            sections[name] = cls(**config[name].to_dict())
            _check_choices(name, config[name])
        except ValueError as error:
            raise UserError(f"config.{name}: {error}") from error
    try:
        return Settings(**sections, seed=config.seed)
    except ValueError as error:
        raise UserError(f"config.{error}") from error


def _check_choices(section: str, values: ConfigDict) -> None:
    """Raises ValueError where a field of a section names no entry of its registry."""
    for field, registry in CHOICES.items():
        owner, _, name = field.partition(".")
        # data.name may be several, which data.sources takes apart.
        if owner == section and field != "data.name" and values[name] is not None:
            registry.find(values[name])


def load_json(path: Path) -> ConfigDict:
    """The config that `save_json` wrote. Raises UserError where the file is missing or damaged."""
    try:
        given = json.loads(read_regular(path, SETTINGS_BYTES))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} holds no run: {path.name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, Mapping):
        raise UserError(f"{path} is damaged: it holds no object")
    return complete_config(given, str(path))


def save_json(config: ConfigDict, path: Path) -> None:
    """Writes a config, whole or not at all."""
    write_whole(path, json.dumps(config.to_dict(), indent=2) + "\n")


def check_same_run(config: ConfigDict, kept: ConfigDict, workdir: Path) -> None:
    """Raises UserError, naming the first difference, unless `config` is that of `workdir`'s run."""
    before, now = flattened(kept), flattened(config)
    idle = unread_fields(before)  # earlier versions let them be set
    for name in [name for name in FIELDS if name not in idle]:
        old, new = before[name], now[name]
        fixed = name.partition(".")[0] in FIXED and name not in FREE
        grows = name == "train.num_steps" and new > old
        if name == "optimizer.decay_steps":
            grows = (new or now["train.num_steps"]) >= (old or before["train.num_steps"])
        if fixed and old != new and not grows:
            raise UserError(
                f"{workdir} holds another run: its {name} is {old!r}, the config's is {new!r}; "
                "choose another --workdir or the same value"
            )


def _require_modules(config: ConfigDict) -> None:
    """Raises UserError where a component of the config was registered by a config file, or by one
    beside it: a run could not name that file, to be given again."""
    for field, registry in CHOICES.items():
        for name in (_get(config, field) or "").split(","):
            module = registry.module_of(name)
            if module is not None and module not in sys.modules:
                raise UserError(
                    f"config.{field} is {name!r}, which a config file registers or imports from "
                    "beside it: put it into a file of its own, and give that as --modules=FILE"
                )


def _to_config_dict(values: Mapping[str, Any]) -> ConfigDict:
    """A ConfigDict of the values of all fields, {"section.field": value}."""
    config = ConfigDict({section: {} for section in SECTIONS})
    for name, value in values.items():
        # A reference with a type lets an optional field change between None and a value.
        optional = FIELDS[name].optional
        reference = config_dict.FieldReference(value, FIELDS[name].type) if optional else value
        _set(config, name, reference)
    return config


def flattened(config: ConfigDict) -> dict[str, Any]:
    """The values of all fields, {"section.field": value}."""
    return {name: _get(config, name) for name in FIELDS}


def _get(config: ConfigDict, name: str) -> Any:
    section, _, field = name.partition(".")
    return config[section][field] if field else config[section]


def _set(config: ConfigDict, name: str, value: Any) -> None:
    section, _, field = name.partition(".")
    target = config[section] if field else config
    with target.ignore_type():
        target[field or section] = value


def _checked(given: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """{section: {field: value}} as {"section.field": value}, each value checked."""
    flat: dict[str, Any] = {}
    for section, values in given.items():
        if section in SECTIONS and isinstance(values, Mapping):
            flat |= {f"{section}.{field}": value for field, value in values.items()}
        else:
            flat[section] = values
    return parsed(flat, where)
