# SPDX-License-Identifier: Apache-2.0
"""Configs: read from files, completed with defaults, overridden, checked and compared.

What a user writes is an `ml_collections.ConfigDict` of sections, one for each dataclass of
`Settings`; a config file sets only the fields that differ from the defaults. `resolve` turns it
into `Settings`, once: below it nothing reads a ConfigDict.
"""

import contextlib
import json
import logging
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.buckets.bucket import is_address
from transformer_jax.data.files.table import stored_tables
from transformer_jax.errors import UserError
from transformer_jax.models import MODELS
from transformer_jax.runs.old_configs import upgraded
from transformer_jax.runs.settings import (
    CHOICES,
    COMMAND,
    DEFAULTS,
    FIELDS,
    SECTIONS,
    Origin,
    Resolved,
    Settings,
    all_fields,
    build_settings,
    check_sections,
    chosen_fields,
    flatten,
    nested,
    parsed,
    refuse_unchosen,
    refuse_unread,
    refuse_unread_layers,
)
from transformer_jax.runs.shipped import find_file, suggest_shipped
from transformer_jax.runs.user_modules import (
    Modules,
    describe_error,
    line_in_file,
    load_modules,
    siblings_importable,
)
from transformer_jax.runs.workdir import CONFIG, fetch_files
from transformer_jax.runtime.files import read_regular, write_atomic
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

_ENCODER_ONLY = "encoder_only"
_ENCODER_DECODER = "encoder_decoder"
_SINGLE_STACK_OPTIONS = ("architecture", "num_layers", "num_token_types", "tie_embeddings")
"""Options of an encoder-only model that an encoder-decoder does not take from it."""


class Config(Summarized, ConfigDict):
    """A ConfigDict whose representation is short; `print` shows all fields."""

    _settings: Settings | None = None
    """What it was made of: values that are not changed since keep their origins."""

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
        """Compares with any ConfigDict; a ConfigDict compares with its own class alone."""
        return isinstance(other, ConfigDict) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def load_config(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    modules: Modules = (),
    data: Mapping[str, Any] | None = None,
) -> ConfigDict:
    """Reads a config file and sets `overrides`, {"section.field": value}; texts are parsed.

    A shipped config needs no path: "quickstart" (`shipped.find_file`).

    Fields that neither sets have their defaults for the task and the architecture. The user's
    `modules`, with components that the config names, are loaded first. With `data`, {"train":
    DataFrame, "valid": ...}, these are its splits (`files.table`).

    Raises:
      UserError: as `resolve`, or `data` is no table.
    """
    tables = stored_tables(data) if data is not None else {}
    return to_config(resolve_file(path, {**tables, **(overrides or {})}, modules))


def resolve_file(path: str | Path, overrides: Mapping[str, Any], modules: Modules = ()) -> Settings:
    """Resolves a config file of the user, or the config.json of a run to train."""
    is_loaded = str(path).endswith(".json")
    origin = Origin("loaded config" if is_loaded else "config file", str(path))
    return resolve(path, overrides, modules, origin)


def resolve(
    config: Settings | ConfigDict | Mapping[Any, Any] | str | Path,
    overrides: Mapping[str, Any],
    modules: Modules,
    origin: Origin,
) -> Settings:
    """Parses a config, fills it with defaults and checks it.

    Each value comes from, in this order of precedence: `overrides`; `config`; the model of the run
    to start from (`train.init_from`); the architecture; the task; its dataclass. What a loaded run
    has stored is whole: a field that its version did not have is that of the dataclass. It need not
    be trainable, so it may set fields that have no effect.

    Args:
      config: the path of a config file or of a config.json; sections of fields; or settings, whose
        values keep their origins.
      overrides: {"section.field": value}; texts are parsed. Their origin is this command.
      modules: the user's modules, with components that the config names; loaded first.
      origin: where the values of `config` come from.

    Raises:
      UserError: there is no such file, it fails or has no get_config; an unknown field (the
        nearest is named) or a value of the wrong type; a field that has no effect
        (`settings.refuse_unread`) or contradicts another one; a module that fails.
    """
    load_modules(modules)
    changes = parsed(overrides, COMMAND.where)
    if isinstance(config, Settings):
        if not changes:
            return config
        resolved = Resolved.of({**config.values, **changes})
        refuse_unchosen(resolved, changes, COMMAND.where)
        return build_settings(resolved, {**config.origins, **dict.fromkeys(changes, COMMAND)})
    is_whole = isinstance(config, ConfigDict)
    source = config._settings if isinstance(config, Config) else None
    if isinstance(config, ConfigDict):
        config = config.to_dict()
    elif not isinstance(config, Mapping):
        config = run_config_file(config)
    values = flatten(config)
    if origin.kind.startswith("loaded"):
        values = upgraded(values, origin.where)
    chosen: Mapping[str, Any] = parsed(values, origin.where)
    if origin.kind in ("loaded run", "config"):
        defaults: Mapping[str, Any] = DEFAULTS
        resolved = Resolved.of({**defaults, **chosen, **changes})
        if changes:  # another component drops the stored options of the former one
            chosen = {name: value for name, value in chosen.items() if name in resolved.values}
    else:
        is_loaded = (source.origin("train.init_from") if source else origin).is_loaded
        resolved, defaults, chosen = _resolve_chosen(chosen, changes, is_loaded)
    refuse_unchosen(resolved, changes, COMMAND.where)
    if not is_whole:  # a notebook may have chosen another component in place
        refuse_unchosen(resolved, chosen, origin.where)
    origins = dict.fromkeys(chosen, origin)
    if source:
        for name, value in source.values.items():
            if name in chosen and chosen[name] == value:
                origins[name] = source.origin(name)
    origins |= dict.fromkeys(changes, COMMAND)
    settings = build_settings(resolved, origins)
    if origin.kind in ("config file", "command", "loaded config"):
        _check_trainable(settings, defaults)
    if origin.kind == "config file":
        _require_modules(settings)
    return settings


def override(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values, {"section.field": value}; texts are parsed.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    return resolve(settings, changes, (), COMMAND)


def read_settings(config: Settings | ConfigDict) -> Settings:
    """The settings of a config that need not be trainable, such as that of a trained run."""
    return resolve(config, {}, (), Origin("config", "config"))


def _resolve_chosen(
    in_file: Mapping[str, Any], changes: Mapping[str, Any], is_loaded: bool
) -> tuple[Resolved, Mapping[str, Any], Mapping[str, Any]]:
    """Resolves what a config file and overrides set.

    Fields of the file that nothing reads after the overrides are left out: an override of the
    positions, for example, need not also reset the options of the file's own positions. A loaded
    config has all fields of its model, and so none from the run that it starts from.

    Returns:
      (the whole config, its defaults, the fields that were set)
    """
    chosen = {**in_file, **changes}
    defaults = defaults_for(chosen, is_loaded)
    resolved = Resolved.of({**defaults, **chosen})
    idle = {
        name
        for name in in_file.keys() - changes.keys()
        if changes and (name in resolved.unread or name not in resolved.values)
    }
    if not idle:
        return resolved, defaults, chosen
    # A field without effect before the overrides too is a mistake in the file: kept, and refused.
    of_file = Resolved.of({**defaults_for(in_file, is_loaded), **in_file})
    idle = {name for name in idle if name in of_file.values and name not in of_file.unread}
    chosen = {name: value for name, value in in_file.items() if name not in idle}
    chosen |= changes
    defaults = defaults_for(chosen, is_loaded)
    return Resolved.of({**defaults, **chosen}), defaults, chosen


def load_json(path: Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Reads the settings that `save_json` wrote to a workdir, with values of this command.

    Raises:
      UserError: the file is missing or damaged, or as `resolve`.
    """
    return resolve(_read_json(path), overrides or {}, (), Origin("loaded run", str(path)))


def _read_json(path: Path) -> dict[Any, Any]:
    """Reads an object of sections; errors are those of `load_json`."""
    try:
        tree = json.loads(read_regular(path))
    except FileNotFoundError as error:
        hint = "" if path.parent.exists() else suggest_file(path.parent)
        raise UserError(f"{path.parent} holds no run: {path.name} is missing{hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return tree


def save_json(settings: Settings, path: Path) -> None:
    """Writes settings, completely or not at all."""
    write_atomic(path, json.dumps(nested(settings.values), indent=2) + "\n")


def _check_trainable(settings: Settings, defaults: Mapping[str, Any]) -> None:
    """Checks a config to train; a trained run need not pass.

    Raises:
      UserError: a field differs from its defaults and nothing reads it, or sections contradict each
        other (`settings.check_sections`).
    """
    values = settings.values
    differ = [name for name in FIELDS if values[name] not in (defaults[name], DEFAULTS[name])]
    refuse_unread(settings.resolved, [n for n in differ if not settings.origin(n).is_loaded])
    refuse_unread_layers(settings.resolved)
    check_sections(settings)


def check_same_run(settings: Settings, saved: Settings, workdir: str | Path) -> None:
    """Raises UserError, naming the first difference, if `workdir` holds the run of other settings.

    Logs a warning if the run is extended at a higher learning rate.
    """
    before = saved.values
    now = settings.values
    unread = saved.resolved.unread  # earlier versions allowed them to be set
    for name in {**before, **now}:
        if name in unread:
            continue
        old: Any = before.get(name)
        new: Any = now.get(name)
        fixed = name.partition(".")[0] in FIXED and name not in CHANGEABLE
        grows = name == "train.num_steps" and new > old
        if name == "optimizer.decay_steps":
            grows = (new or now["train.num_steps"]) >= (old or before["train.num_steps"])
        if fixed and old != new and not grows:
            raise UserError(
                f"{workdir} holds another run: its {name} is {old!r}, the config's is {new!r}; "
                "choose another --workdir or the same value"
            )
    steps_before = before["train.num_steps"]
    steps_now = now["train.num_steps"]
    if steps_before < steps_now:
        width = settings.model.d_model
        message = raised_rate(saved.optimizer, settings.optimizer, width, steps_before, steps_now)
        if message:
            logger.warning("%s: %s", workdir, message)


def _require_modules(settings: Settings) -> None:
    """Raises UserError if a config file, or a file beside it, registered a component of the config.

    A run could not name that file, for the user to give again.
    """
    for field, names in settings.resolved.names.items():
        for name in names:
            module = CHOICES[field].module_of(name)
            if module is not None and module not in sys.modules:
                raise UserError(
                    f"config.{field} is {name!r}, which a config file registers or imports from "
                    "beside it: put it into a file of its own, and give that as --modules=FILE"
                )


def defaults_for(chosen: Mapping[str, Any], is_loaded: bool = False) -> dict[str, Any]:
    """The default of every field in a config that sets those of `chosen`, {"section.field": value}.

    In order of precedence: the model of the run to start from, the defaults of the architecture,
    those of the task (which may set the architecture), those of the dataclasses. An unknown task or
    architecture has no defaults; it is refused when it is built.

    Args:
      is_loaded: without those of the run to start from.
    """
    defaults = dict(DEFAULTS)
    task = chosen.get("task.name", defaults["task.name"])
    if task in TASKS:
        defaults |= parsed(TASKS[task].defaults, f"defaults of task {task}")
    architecture = chosen.get("model.architecture", defaults["model.architecture"])
    if architecture in MODELS:
        of_model = getattr(MODELS[architecture], "defaults", {})  # a user's class may have none
        defaults |= parsed(of_model, f"defaults of architecture {architecture}")
    init_from = None if is_loaded else chosen.get("train.init_from")
    options = model_options(init_from, chosen.get("model.architecture"))
    return defaults | parsed(options, f"{init_from}/config.json")


def model_options(init_from: str | None, architecture: str | None = None) -> dict[str, Any]:
    """The model options of the run to start from, {"model.field": value}.

    They are the defaults of the run that starts from its parameters, its dropout rates too: a model
    that was trained without dropout would start at a far higher loss with it. Empty if there is no
    such run; the reader of its parameters reports that.

    Args:
      init_from: workdir of the run to start from.
      architecture: the architecture of the run that starts, if its config sets one. An
        encoder-decoder takes the options of its encoder from an encoder-only run.

    Raises:
      UserError: its model has a component of a module that is not loaded.
    """
    if not init_from:
        return {}
    try:
        path = fetch_files(init_from, (CONFIG,)) / CONFIG
        model = json.loads(read_regular(path))["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(model, Mapping):
        return {}
    options = dict(model)
    for field, registry in CHOICES.items():
        section, _, name = field.partition(".")
        if section == "model" and isinstance(model.get(name), str) and model[name] not in registry:
            load_modules((), init_from)  # names the file that is missing
    if (options.get("architecture"), architecture) == (_ENCODER_ONLY, _ENCODER_DECODER):
        options["num_encoder_layers"] = options.get("num_layers")
        for name in _SINGLE_STACK_OPTIONS:
            options.pop(name, None)
    return upgraded(flatten({"model": options}), f"{init_from}/config.json")


def run_config_file(path: str | Path) -> dict[Any, Any]:
    """Runs a config file; returns the result of its `get_config()` as nested dicts.

    A file that ends in .json is read instead, such as the config.json of a run.

    Raises:
      UserError: there is no such file, it fails, or it has no get_config that returns a ConfigDict.
    """
    if str(path).endswith(".json"):
        local = Path(path)
        if is_address(path):
            from transformer_jax.buckets.copies import fetch_file

            local = fetch_file(str(path))
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
    local = _local_file(path, kind)
    _require_file(local, kind, path)
    with failing_as(f"{kind} file {path} fails", local), siblings_importable(local):
        namespace = runpy.run_path(str(local))
        returned = namespace[function]() if function in namespace else None
    if function not in namespace:
        raise UserError(f"{kind} file {path} defines no {function}()")
    if not isinstance(returned, result):
        raise UserError(
            f"{kind} file {path} fails: {function}() returns {type(returned).__name__}, not a "
            f"{result.__name__}"
        )
    return returned


def _require_file(path: Path, kind: str, name: str | Path) -> None:
    """Raises UserError if a path, `name` to the user, is no file; it suggests a similar one."""
    if path.is_file():
        return
    if (path / CONFIG).is_file():
        raise UserError(f"{name} is a folder; did you mean {path / CONFIG}?")
    raise UserError(f"there is no {kind} file {name}{suggest_shipped(path, kind)}")


def _local_file(path: str | Path, kind: str) -> Path:
    if not is_address(path):
        return find_file(path, kind)
    from transformer_jax.buckets.copies import fetch_folder

    folder, _, name = str(path).rpartition("/")
    return fetch_folder(folder, lambda file: "/" not in file and file.endswith(".py")) / name


@contextlib.contextmanager
def failing_as(what: str, path: Path | None = None) -> Iterator[None]:
    """Turns any error of a user's code, exit() too, into a UserError of one line.

    It begins with `what`, and ends with the line of the file `path` that led to the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        line = line_in_file(error, path) if path else None
        place = "" if line is None else f" (line {line})"
        raise UserError(f"{what}: {describe_error(error)}{place}") from error


def to_config(settings: Settings) -> Config:
    """The settings as a config whose fields a user can read and set."""
    config = Config({section: Config() for section in SECTIONS})
    object.__setattr__(config, "_settings", settings)
    fields = all_fields()
    for entry in settings.resolved.options:
        section, _, name = entry.partition(".")
        config[section][name] = Config()
    with config.ignore_type():  # once: entering it takes longer than setting a field
        for name, value in settings.values.items():
            *groups, field = name.split(".")
            branch = config
            for group in groups:
                branch = branch[group]
            if fields[name].optional:
                # A reference with a type lets the field change between None and a value.
                value = config_dict.FieldReference(value, fields[name].type)
            branch[field] = value
    return config
