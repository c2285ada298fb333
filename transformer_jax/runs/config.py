"""Configs: completed with defaults, overridden, and turned into dataclasses.

A config is an `ml_collections.ConfigDict` of sections, one for each dataclass of `Settings`. A
config file names the fields in which a run differs from the defaults. This and `config_file` are
the only readers of a ConfigDict.
"""

import contextlib
import copy
import importlib
import json
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_folder
from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.runs.settings import (
    CHOICES,
    DEFAULTS,
    FIELDS,
    SECTIONS,
    Settings,
    check_sections,
    parsed,
    refuse_unread,
    unread_fields,
)
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import CONFIG, with_files
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic
from transformer_jax.tasks import TASKS

# FOLDED runs.config_file: Running a user's file of Python: a config file with its `get_config()`,
# a sweep file likewise.


_EXAMPLES = {"config": "configs/", "sweep": "experiments/sweeps/"}


def run_config_file(path: str | Path) -> dict[Any, Any]:
    """What `get_config()` of a file returns, as nested dicts.

    Raises:
      UserError: no such file, it fails, or it has no get_config that returns a ConfigDict.
    """
    return run_file(path, "config", "get_config", ConfigDict).to_dict()


def run_file[Result](path: str | Path, kind: str, function: str, result: type[Result]) -> Result:
    """What `function()` of a user's Python file returns.

    The file may import its siblings by name (`from wmt14_en_de_base import get_config`), whatever
    the current directory is: like a script's, its folder stands first on the import path.

    Args:
      path: of the file, or its address: it is brought here with the others of its folder.
      kind: what the file holds, for messages: "config" or "sweep".
      function: its name, without arguments.
      result: the type that it must return.

    Raises:
      UserError: no such file, it fails or calls exit(), or it has no such function of such a type.
    """
    given, path = path, _here(path)
    if not path.is_file():
        raise UserError(f"there is no {kind} file {given}; see {_EXAMPLES[kind]} for what there is")
    with failing_as(f"{kind} file {given} fails"), _siblings_importable(path):
        names = runpy.run_path(str(path))
        found = names[function]() if function in names else None
    if function not in names:
        raise UserError(f"{kind} file {given} defines no {function}()")
    if not isinstance(found, result):
        returned, wanted = type(found).__name__, result.__name__
        raise UserError(
            f"{kind} file {given} fails: {function}() returns {returned}, not a {wanted}"
        )
    return found


def _here(path: str | Path) -> Path:
    if not is_address(path):
        return Path(path)
    folder, _, name = str(path).rpartition("/")
    return fetch_folder(folder, lambda one: "/" not in one and one.endswith(".py")) / name


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Around a user's code: whatever it raises, exit() too, becomes a UserError of one line."""
    try:
        yield
    except SystemExit as error:
        raise UserError(f"{what}: it calls exit()") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{what}: {reason}") from error


@contextlib.contextmanager
def _siblings_importable(path: Path) -> Iterator[None]:
    """Puts the file's folder on the import path; afterwards forgets what was imported from it.

    Otherwise a notebook would not see that a sibling was edited, and two folders with files of one
    name would get the first one's.
    """
    folder = path.resolve().parent
    before = set(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            source = getattr(sys.modules[name], "__file__", None)
            if source and Path(source).parent == folder:
                del sys.modules[name]


# FOLDED runs.origin: The run that another one starts from (`train.init_from`), and what that one
# takes over of it.


_OF_TRAINING = "dropout_rate"
"""Ends the names of options that belong to a training, not to its parameters."""


_ENCODER_ONLY, _ENCODER_DECODER = "encoder_only", "encoder_decoder"
_OF_ONE_STACK = ("architecture", "num_layers", "num_token_types", "tie_embeddings")


def model_options(init_from: str | None, architecture: str | None = None) -> dict[str, Any]:
    """The options of a run's model, {"model.field": value}: the defaults of a run that starts from
    its parameters. None where there is no such run; who reads its parameters says so.

    Args:
      init_from: workdir of the run to start from.
      architecture: of the run that starts, where its config names one. An encoder-decoder takes
        from an encoder alone what is to be said of its encoder.
    """
    if not init_from:
        return {}
    try:
        content = json.loads(
            read_regular(with_files(init_from, (CONFIG,)) / CONFIG, SETTINGS_BYTES)
        )
        model = content["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(model, Mapping):
        return {}
    kept = {name: one for name, one in model.items() if not name.endswith(_OF_TRAINING)}
    if (kept.get("architecture"), architecture) == (_ENCODER_ONLY, _ENCODER_DECODER):
        kept["num_encoder_layers"] = kept.get("num_layers")
        kept = {name: one for name, one in kept.items() if name not in _OF_ONE_STACK}
    return {f"model.{name}": one for name, one in kept.items()}


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
        sections do not go together (`runs.settings`).
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
    write_atomic(path, json.dumps(config.to_dict(), indent=2) + "\n")


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
