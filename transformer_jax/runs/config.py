# SPDX-License-Identifier: Apache-2.0
"""Configs: completed with defaults, overridden, compared, and turned into dataclasses.

A config is an `ml_collections.ConfigDict` of sections, one for each dataclass of `Settings`.
A config file sets only the fields that differ from the defaults. No other module reads a
ConfigDict.
"""

import contextlib
import importlib
import json
import logging
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.buckets.bucket import is_address
from transformer_jax.buckets.copies import fetch_file, fetch_folder
from transformer_jax.errors import UserError
from transformer_jax.fields import fields_of
from transformer_jax.models import MODELS
from transformer_jax.ranges import check_fields
from transformer_jax.runs.settings import (
    CHOICES,
    DEFAULTS,
    FIELDS,
    SECTIONS,
    Settings,
    check_sections,
    chosen_fields,
    chosen_names,
    complete,
    field_of,
    fields_for,
    flatten,
    option_classes,
    option_fields,
    parsed,
    refuse_unchosen,
    refuse_unread,
    refuse_unread_layers,
    unread_fields,
)
from transformer_jax.runs.shipped import find_file, suggest_shipped
from transformer_jax.runs.user_modules import (
    Modules,
    describe_error,
    line_in_file,
    load_modules,
)
from transformer_jax.runs.workdir import CONFIG, fetch_files
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic
from transformer_jax.suggestions import suggest_file
from transformer_jax.summary import Summarized
from transformer_jax.tasks import TASKS
from transformer_jax.training.optimizer import raised_rate

logger = logging.getLogger(__name__)

FIXED = ("task", "model", "tokenizer", "data", "optimizer", "lora", "train", "seed")
"""Sections that stay the same for the life of a run, except for the fields `CHANGEABLE` and for
growing `train.num_steps` and `optimizer.decay_steps`."""
CHANGEABLE = (
    *("data.dir", "data.cache_dir", "data.num_workers", "model.attention", "model.scan_layers"),
    *("train.on_spike", "train.spike_factor", "train.callbacks"),
)

_ENCODER_ONLY, _ENCODER_DECODER = "encoder_only", "encoder_decoder"
_SINGLE_STACK_OPTIONS = ("architecture", "num_layers", "num_token_types", "tie_embeddings")


class Config(Summarized, ConfigDict):
    """A ConfigDict whose representation is short; `print` shows all fields."""

    def summary(self) -> Mapping[str, Any]:
        """The fields of a section; of a whole config those that differ from their defaults."""
        if not SECTIONS.keys() <= set(self):
            return self.to_dict()
        chosen = dict[str, list[str]]()
        for name, value in chosen_fields(flatten(self.to_dict())).items():
            section, _, field = name.rpartition(".")
            chosen.setdefault(section or name, []).append(f"{field}={value}")
        return {section: ", ".join(fields) for section, fields in chosen.items()}

    def __eq__(self, other: object) -> bool:
        """Compares with any ConfigDict, whereas that compares with its own class alone."""
        return isinstance(other, ConfigDict) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def load_config(
    path: str | Path, overrides: Mapping[str, Any] | None = None, modules: Modules = ()
) -> ConfigDict:
    """Reads a config file and sets `overrides`, {"section.field": value}; texts are parsed.

    A shipped config needs no path: "quickstart" (`shipped.find_file`).

    Fields that neither sets have their defaults for the task and the architecture
    (`defaults_for`). The user's `modules`, with components that the config names, are loaded first.

    Raises:
      UserError: there is no such file, it fails or has no get_config; an unknown field (the nearest
        is named) or a value of the wrong type, in the file or in `overrides`; a module that fails.
    """
    load_modules(modules)
    given = parsed(overrides or {}, "override")
    in_file = parsed(flatten(run_config_file(path)), str(path))
    chosen = _still_read(in_file, given) | given
    refuse_unchosen(defaults_for(chosen) | chosen, given, "override")
    config = config_of(chosen, str(path))
    check_trainable(config)
    _require_modules(config)
    return config


def config_of(chosen: Mapping[str, Any], where: str) -> ConfigDict:
    """The config that sets the fields of `chosen`, {"section.field": value}.

    The others have their defaults for its task and architecture. UserError as `parsed`, with
    `where` in it.
    """
    chosen = parsed(chosen, where)
    values = defaults_for(chosen) | chosen
    refuse_unchosen(values, chosen, where)
    return _to_config_dict(values)


def complete_config(given: Mapping[str, Any], where: str) -> ConfigDict:
    """The dataclasses' defaults with the values of `given`, {section: {field: value}}, set."""
    chosen = parsed(flatten(given), where)
    refuse_unchosen(DEFAULTS | chosen, chosen, where)
    return _to_config_dict(complete(DEFAULTS | chosen))


def override(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy with other values, {"section.field": value}; texts are parsed.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    chosen = parsed(overrides, "override")
    values = parsed(flatten(config.to_dict()), "config") | chosen
    refuse_unchosen(values, chosen, "override")
    return _to_config_dict(complete(values))


def load_json(path: Path) -> ConfigDict:
    """Reads a config that `save_json` wrote; UserError if the file is missing or damaged."""
    return complete_config(_read_json(path), str(path))


def _read_json(path: Path) -> dict[Any, Any]:
    """Reads an object of sections; errors are those of `load_json`."""
    try:
        given = json.loads(read_regular(path, SETTINGS_BYTES))
    except FileNotFoundError as error:
        hint = "" if path.parent.exists() else suggest_file(path.parent)
        raise UserError(f"{path.parent} holds no run: {path.name} is missing{hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return given


def save_json(config: ConfigDict, path: Path) -> None:
    """Writes a config, completely or not at all."""
    values = complete(flatten(config.to_dict()))  # a component may have been chosen in place
    write_atomic(path, json.dumps(_to_config_dict(values).to_dict(), indent=2) + "\n")


def read_settings(config: ConfigDict) -> Settings:
    """Turns each section into its dataclass.

    Raises:
      UserError: a value that its dataclass refuses; section and reason are named.
    """
    sections = {}
    values = flatten(config.to_dict())
    options = option_classes(values)
    for name, cls in SECTIONS.items():
        own = {entry: one for entry, one in options.items() if entry.startswith(f"{name}.")}
        given = {
            field: config[name][field] for field in config[name] if f"{name}.{field}" in values
        }
        if own:
            given["options"] = tuple(_read_options(*item, values) for item in own.items())
        try:
            sections[name] = cls(**given)
            _check_choices(name, config[name])
        except ValueError as error:
            raise UserError(f"config.{name}: {error}") from error
    try:
        return Settings(**sections, seed=config.seed)
    except ValueError as error:
        raise UserError(f"config.{error}") from error


def _read_options(entry: str, cls: type, values: Mapping[str, Any]) -> Any:
    """Options of "section.entry" as their dataclass; errors as of `read_settings`."""
    fields = fields_of(entry, cls)
    given = {name.rpartition(".")[2]: values.get(name, fields[name].default) for name in fields}
    try:
        options = cls(**given)
        check_fields(options)
    except ValueError as error:
        raise UserError(f"config.{entry}: {error}") from error
    return options


def _check_choices(section: str, values: ConfigDict) -> None:
    """Raises ValueError if a field of a section names no entry of its registry."""
    for field, registry in CHOICES.items():
        owner, _, name = field.rpartition(".")
        # The names in data.name are found by data.sources.
        if owner == section and field != "data.name" and values[name] is not None:
            for each in values[name].split(",") if registry.several else [values[name]]:
                registry.find(each)


def check_trainable(config: ConfigDict) -> Settings:
    """The settings of a config to train; `read_settings` is enough for a trained run.

    Raises:
      UserError: as `read_settings`; a field differs from its default and nothing reads it; or
        sections contradict each other (`settings.check_sections`).
    """
    settings, values = read_settings(config), flatten(config.to_dict())
    own = defaults_for(values)
    differ = [name for name in FIELDS if values[name] not in (own[name], DEFAULTS[name])]
    refuse_unread(values, differ)
    refuse_unread_layers(values)
    check_sections(settings)
    return settings


def check_same_run(config: ConfigDict, saved: ConfigDict, workdir: Path) -> None:
    """Raises UserError, naming the first difference, if `config` is not that of `workdir`'s run.

    Logs a warning if the run is extended at a higher learning rate.
    """
    before, now = (complete(flatten(each.to_dict())) for each in (saved, config))
    old: Any  # of any field
    new: Any
    idle = unread_fields(before)  # earlier versions allowed them to be set
    for name in [name for name in before | now if name not in idle]:
        old, new = before.get(name), now.get(name)
        fixed = name.partition(".")[0] in FIXED and name not in CHANGEABLE
        grows = name == "train.num_steps" and new > old
        if name == "optimizer.decay_steps":
            grows = (new or now["train.num_steps"]) >= (old or before["train.num_steps"])
        if fixed and old != new and not grows:
            raise UserError(
                f"{workdir} holds another run: its {name} is {old!r}, the config's is {new!r}; "
                "choose another --workdir or the same value"
            )
    lengths = before["train.num_steps"], now["train.num_steps"]
    if lengths[0] < lengths[1]:
        old, new = (read_settings(each).optimizer for each in (saved, config))
        if message := raised_rate(old, new, now["model.d_model"], *lengths):
            logger.warning("%s: %s", workdir, message)


def _require_modules(config: ConfigDict) -> None:
    """Raises UserError if a component of the config was registered by a config file.

    Or by a file beside it: a run could not name that file, for the user to give again.
    """
    values = flatten(config.to_dict())
    for field, registry in CHOICES.items():
        for name in chosen_names(field, values):
            module = registry.module_of(name)
            if module is not None and module not in sys.modules:
                raise UserError(
                    f"config.{field} is {name!r}, which a config file registers or imports from "
                    "beside it: put it into a file of its own, and give that as --modules=FILE"
                )


def defaults_for(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every field in a config that sets those of `chosen`, {"section.field": value}.

    In order of precedence: the model of the run to start from, the defaults of the architecture,
    those of the task (which may set the architecture), those of the dataclasses. An unknown task or
    architecture has no defaults; it is refused when it is built.
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
    defaults |= parsed(options, f"{origin}/config.json")
    own = complete({**defaults, **chosen})
    return {name: defaults.get(name, own[name]) for name in own}


def model_options(init_from: str | None, architecture: str | None = None) -> dict[str, Any]:
    """The model options of the run to start from, {"model.field": value}.

    They are the defaults of the run that starts from its parameters, its dropout rates too: a model
    that was trained without dropout would start at a far higher loss with it. Empty if there is no
    such run; the reader of its parameters reports that.

    Args:
      init_from: workdir of the run to start from.
      architecture: the architecture of the run that starts, if its config sets one. An
        encoder-decoder takes the options of its encoder from an encoder-only run.
    """
    if not init_from:
        return {}
    try:
        path = fetch_files(init_from, (CONFIG,)) / CONFIG
        model = json.loads(read_regular(path, SETTINGS_BYTES))["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(model, Mapping):
        return {}
    options = dict(model)
    if (options.get("architecture"), architecture) == (_ENCODER_ONLY, _ENCODER_DECODER):
        options["num_encoder_layers"] = options.get("num_layers")
        options = {name: one for name, one in options.items() if name not in _SINGLE_STACK_OPTIONS}
    return flatten({"model": options})


def _still_read(in_file: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The fields that a config file sets, without those that nothing reads after `overrides`.

    An override of the positions, for example, need not also reset the options of the file's own
    positions.
    """
    before = defaults_for(in_file) | in_file
    after = defaults_for(in_file | overrides) | in_file | overrides
    idle = unread_fields(after).keys() - unread_fields(before).keys()
    idle |= option_fields(before).keys() - option_fields(after).keys()
    return {name: value for name, value in in_file.items() if name not in idle}


def run_config_file(path: str | Path) -> dict[Any, Any]:
    """Runs a config file; returns the result of its `get_config()` as nested dicts.

    A file that ends in .json is read instead, such as the config.json of a run.

    Raises:
      UserError: there is no such file, it fails, or it has no get_config that returns a ConfigDict.
    """
    if str(path).endswith(".json"):
        local = fetch_file(str(path)) if is_address(path) else Path(path)
        _require_file(local, "config", path)
        return _read_json(local)
    return run_file(path, "config", "get_config", ConfigDict).to_dict()


def run_file[Result](path: str | Path, kind: str, function: str, result: type[Result]) -> Result:
    """Runs a user's Python file; returns the result of its `function()`.

    The file may import its siblings by name (`from wmt14_en_de_base import get_config`) from any
    current directory: its folder is first on the import path, as for a script.

    Args:
      path: the file, the name of a shipped one, or an address; all Python files of its folder are
        fetched.
      kind: "config", "sweep" or "claim", for messages.
      function: name of a function without arguments.
      result: the type that it must return.

    Raises:
      UserError: there is no such file, it fails or calls exit(), or it has no such function of this
        type.
    """
    given, path = path, _local_file(path, kind)
    _require_file(path, kind, given)
    with failing_as(f"{kind} file {given} fails", path), _siblings_importable(path):
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


def _require_file(path: Path, kind: str, given: str | Path) -> None:
    """Raises UserError if a path is not a file; it suggests one with a similar name."""
    if path.is_file():
        return
    if (path / CONFIG).is_file():
        raise UserError(f"{given} is a folder; did you mean {path / CONFIG}?")
    raise UserError(f"there is no {kind} file {given}{suggest_shipped(path, kind)}")


def _local_file(path: str | Path, kind: str) -> Path:
    if not is_address(path):
        return find_file(path, kind)
    folder, _, name = str(path).rpartition("/")
    return fetch_folder(folder, lambda one: "/" not in one and one.endswith(".py")) / name


@contextlib.contextmanager
def failing_as(what: str, path: Path | None = None) -> Iterator[None]:
    """Turns any error of a user's code, exit() too, into a UserError of one line.

    It begins with `what`, and ends with the line of the file `path` that led to the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        line = line_in_file(error, path) if path else None
        where = "" if line is None else f" (line {line})"
        reason = "it calls exit()" if isinstance(error, SystemExit) else describe_error(error)
        raise UserError(f"{what}: {reason}{where}") from error


@contextlib.contextmanager
def _siblings_importable(path: Path) -> Iterator[None]:
    """Puts the file's folder on the import path; afterwards forgets what was imported from it.

    Otherwise a notebook would not notice that a sibling was edited, and two folders with files of
    the same name would both get the first one's.
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


def _to_config_dict(values: Mapping[str, Any]) -> ConfigDict:
    """A ConfigDict of the values of all fields, {"section.field": value}."""
    config, fields = Config({section: Config() for section in SECTIONS}), fields_for(values)
    for entry in option_classes(values):
        section, _, name = entry.partition(".")
        config[section][name] = Config()
    with config.ignore_type():  # once: entering it takes longer than setting a field
        for name, value in values.items():
            # A reference with a type lets an optional field change between None and a value.
            optional, type_ = fields[name].optional, fields[name].type
            group, _, field = name.rpartition(".")
            target = field_of(config, group) if group else config
            target[field] = config_dict.FieldReference(value, type_) if optional else value
    return config
