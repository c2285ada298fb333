# SPDX-License-Identifier: Apache-2.0
"""Configs: read from files, completed with defaults, overridden and checked.

What a user writes is an `ml_collections.ConfigDict` of sections, one for each dataclass of
`Settings`; a config file sets only the fields that differ from the defaults. `resolve` turns it
into `Settings`, once: below it nothing reads a ConfigDict.

A config is refused if a field has a wrong type (`parsed`) or no effect (`refuse_unread`), an option
belongs to a component that is not chosen (`refuse_unchosen`), or sections contradict each other
(`check_sections`). A value that its own section cannot use is refused by the dataclass of the
section.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.buckets.copies import fetch_file
from transformer_jax.data.sources import SOURCES
from transformer_jax.errors import UserError, user_errors
from transformer_jax.fields import fields_of
from transformer_jax.models import MODELS
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.ranges import check_fields, read_text, short_repr
from transformer_jax.registry import imported
from transformer_jax.runs import user_modules
from transformer_jax.runs.settings import (
    CHOICES,
    COMMAND,
    DEFAULTS,
    FIELDS,
    SECTION_FIELDS,
    SECTIONS,
    Origin,
    Resolved,
    Settings,
    layers_of,
    tables,
)
from transformer_jax.runs.shipped import find_file
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import CONFIG, fetch_files
from transformer_jax.runtime.files import cache_folder, read_regular, write_atomic
from transformer_jax.suggestions import suggest_fields, suggest_file
from transformer_jax.summary import Summarized
from transformer_jax.tasks import TASKS
from transformer_jax.training.schedules import SCHEDULES

FIXED = (
    *("task", "model", "tokenizer", "data", "optimizer", "lora", "train", "seed"),
    "eval.best_corpus",  # the scores of saved steps are of that corpus
)
"""Sections and fields that stay the same for the life of a run, except for the fields `CHANGEABLE`
and for growing `train.num_steps` and `optimizer.decay_steps`."""
CHANGEABLE = (
    *("data.dir", "data.cache_dir", "data.num_workers", "model.attention", "model.scan_layers"),
    *("train.on_spike", "train.spike_factor", "train.callbacks"),
)
_SINGLE_STACK_OPTIONS = ("architecture", "num_layers", "num_token_types", "tie_embeddings")
"""Options of a model with one stack that an encoder-decoder does not take from it."""
VALIDATION_FIELD = re.compile(
    r"task\.name|data\.(name|documents|max_length|valid_.*|max_source.*|max_target.*)"
)
"""Fields on which the examples of the validation split depend."""
PLACE_OF_DATA = re.compile(r"data\.(name|dir|documents|(train|valid|test)_.*)")
"""Fields that say where data are, and nothing else of them."""


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

    # A copy keeps the origins, too: what only a loaded config names is refused in it as well.
    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        object.__setattr__(self, "_settings", state.get("_settings"))

    def copy_and_resolve_references(self, visit_map: Any = None) -> "Config":
        config: Config = super().copy_and_resolve_references(visit_map)
        object.__setattr__(config, "_settings", self._settings)
        return config


def to_config(settings: Settings) -> Config:
    """The settings as a config whose fields a user can read and set."""
    fields = tables().fields
    values = dict(settings.values)
    for name, value in values.items():
        words = fields[name].words
        if words:
            # A reference with a type lets the field change between a word and a value.
            kind = fields[name].type if words == (None,) else object
            values[name] = config_dict.FieldReference(value, kind)
    config = nested(values, Config)
    object.__setattr__(config, "_settings", settings)
    return config


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
    splits: Mapping[str, Any] = {}
    if data is not None:
        from transformer_jax.data.files.table import stored_tables

        splits = stored_tables(data)
    return to_config(resolve_file(path, {**splits, **(overrides or {})}, modules))


def resolve_file(path: str | Path, overrides: Mapping[str, Any], modules: Modules = ()) -> Settings:
    """Resolves a config file of the user, or the config.json of a run to train."""
    user_modules.load_modules(modules)  # the file may name their components
    is_loaded = str(path).endswith(".json")
    origin = Origin("loaded config" if is_loaded else "config file", str(path))
    init_from = overrides.get(_INIT_FROM)
    if init_from:
        overrides = {**overrides, _INIT_FROM: _imported(str(init_from))}
    return resolve(_run_config_file(path, init_from), overrides, (), origin)


def _imported(run: str) -> str:
    """The workdir of a run; of a published model, hf:OWNER/NAME, one in the user's cache, into
    which it is imported first."""
    folder = cache_folder("imported")
    if not run.startswith("hf:") or folder is None:
        return run
    workdir = folder / re.sub(r"[^\w.@-]+", "--", run.removeprefix("hf:"))
    if not (workdir / CONFIG).exists():
        imported("transformer_jax.interop.importing:import_model")(run, workdir)
    return str(workdir)


def setting_files(path: str | Path) -> dict[str, tuple[Any, str]]:
    """Fields that a config file sets, {"section.field": (value, name of the file that set it)}.

    A config that the file imports has set what has the same value there.
    """
    file = find_file(path, "config")
    fields = {name: (value, file.name) for name, value in flatten(_run_config_file(path)).items()}
    for base in re.findall(r"^from (\w+) import get_config", file.read_text("utf-8"), re.MULTILINE):
        for name, (value, owner) in setting_files(file.with_name(f"{base}.py")).items():
            if name in fields and fields[name] == (value, file.name):
                fields[name] = (value, owner)
    return fields


def _run_config_file(path: str | Path, init_from: Any = None) -> dict[Any, Any]:
    """The config of a file that defines `get_config()`, or the content of a .json file, as nested
    dicts; UserError if there is no such file or it fails.

    If `get_config` has a parameter `init_from`, it gets the run that training starts from: a config
    may leave sizes to it.
    """
    if not str(path).endswith(".json"):
        return user_modules.run_file(
            path, "config", "get_config", ConfigDict, init_from=init_from
        ).to_dict()
    local = fetch_file(path)
    user_modules.require_file(local, "config", path)
    return _read_json(local)


def load_json(path: Path, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Reads the settings that `save_json` wrote to a workdir, with values of this command.

    Raises:
      UserError: the file is missing or damaged, or as `read_settings`.
    """
    return read_settings(_read_json(path), overrides or {}, Origin("loaded run", str(path)))


def _read_json(path: Path) -> dict[Any, Any]:
    """Reads an object of sections; errors are those of `load_json`."""
    try:
        tree = json.loads(read_regular(path))
        if not isinstance(tree, dict):
            raise ValueError("it holds no object")
        if "model_type" in tree:  # transformers' config.json
            raise UserError(
                f"{path.parent} holds a published model, not a run; "
                f"`transformer_jax import --from={path.parent} --workdir=DIR` makes one of it"
            )
    except FileNotFoundError as error:
        hint = "" if path.parent.exists() else suggest_file(path.parent)
        raise UserError(f"{path.parent} holds no run: {path.name} is missing{hint}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return tree


def save_json(settings: Settings, path: Path) -> None:
    """Writes settings, completely or not at all."""
    write_atomic(path, json.dumps(nested(settings.values), indent=2) + "\n")


def resolve(
    config: Settings | ConfigDict | Mapping[Any, Any],
    overrides: Mapping[str, Any],
    modules: Modules,
    origin: Origin,
) -> Settings:
    """Parses a config to train, fills it with defaults and checks it.

    Each value comes from, in this order of precedence: `overrides`; `config`; the model of the run
    to start from (`train.init_from`); the architecture; the task; its dataclass.

    Args:
      config: sections of fields; or settings, whose values keep their origins.
      overrides: {"section.field": value}; texts are parsed. Their origin is this command.
      modules: the user's modules, with components that the config names; loaded first.
      origin: where the values of `config` come from.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type; a field that
        has no effect (`refuse_unread`) or contradicts another one; a module that fails.
    """
    user_modules.load_modules(modules)
    if isinstance(config, Settings):
        return override(config, overrides)
    changes = parsed(overrides, COMMAND.where)
    former = getattr(config, "_settings", None)
    # A loaded config has all fields of its model, and so none from the run that it starts from.
    is_loaded = (former.origin("train.init_from") if former else origin).is_loaded
    in_file = _parse_tree(config, origin)
    chosen = {**in_file, **changes}
    defaults = defaults_for(chosen, is_loaded)
    resolved = Resolved.of({**defaults, **chosen})
    idle = _idle_in_file(in_file, changes, resolved, is_loaded)
    if idle:
        chosen = {name: value for name, value in chosen.items() if name not in idle}
        defaults = defaults_for(chosen, is_loaded)
        resolved = Resolved.of({**defaults, **chosen})
    settings = _build_checked(config, resolved, chosen, changes, origin)
    if origin.kind != "published model":
        _check_trainable(settings, defaults)
    if origin.kind == "config file":
        _require_modules(settings)
    return settings


def override(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values, {"section.field": value}; texts are parsed, as in a shell.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    if not changes:
        return settings
    typed = parsed(changes, COMMAND.where)
    resolved = Resolved.of({**settings.values, **typed})
    refuse_unchosen(resolved, typed, COMMAND.where)
    return build_settings(resolved, {**settings.origins, **dict.fromkeys(typed, COMMAND)})


_INIT_FROM = "train.init_from"
_GIVEN = Origin("config", "config")


def read_settings(
    config: Settings | ConfigDict | Mapping[Any, Any],
    overrides: Mapping[str, Any] | None = None,
    origin: Origin = _GIVEN,
) -> Settings:
    """The settings of a whole config that need not be trainable, such as that of a trained run.

    A field that the version that stored it did not have is that of its dataclass; a field may have
    no effect. Arguments and errors as of `resolve`.
    """
    if isinstance(config, Settings):
        return override(config, overrides or {})
    changes = parsed(overrides or {}, COMMAND.where)
    chosen = _parse_tree(config, origin)
    resolved = Resolved.of({**DEFAULTS, **chosen, **changes})
    if changes:  # another component drops the stored options of the former one
        chosen = {name: value for name, value in chosen.items() if name in resolved.values}
    return _build_checked(config, resolved, chosen, changes, origin)


def _parse_tree(config: ConfigDict | Mapping[Any, Any], origin: Origin) -> dict[str, Any]:
    """The typed values of sections, {"section.field": value}; of today's fields if loaded."""
    values = flatten(config.to_dict() if isinstance(config, ConfigDict) else config)
    if origin.kind.startswith("loaded"):
        from transformer_jax.runs.old_configs import upgraded

        values = upgraded(values, origin.where)
    return parsed(values, origin.where)


def _build_checked(
    config: ConfigDict | Mapping[Any, Any],
    resolved: Resolved,
    chosen: Mapping[str, Any],
    changes: Mapping[str, Any],
    origin: Origin,
) -> Settings:
    """Settings with origins: of what `config` sets (`chosen`) and of what this command changes."""
    refuse_unchosen(resolved, changes, COMMAND.where)
    if not isinstance(config, ConfigDict):  # a notebook may have chosen another one in place
        refuse_unchosen(resolved, chosen, origin.where)
    origins = dict.fromkeys(chosen, origin)
    former = getattr(config, "_settings", None)
    if former:
        for name, value in former.values.items():
            if name in chosen and chosen[name] == value:
                origins[name] = former.origin(name)
    return build_settings(resolved, origins | dict.fromkeys(changes, COMMAND))


def _idle_in_file(
    in_file: Mapping[str, Any], changes: Mapping[str, Any], resolved: Resolved, is_loaded: bool
) -> set[str]:
    """The fields of a config file that nothing reads after the overrides: an override of the
    positions, for example, need not also reset the options of the file's own positions."""
    idle = resolved.idle(in_file.keys() - changes.keys())
    if not changes or not idle:
        return set()
    # A field without effect before the overrides too is a mistake in the file: kept, and refused.
    of_file = Resolved.of({**defaults_for(in_file, is_loaded), **in_file})
    return idle - of_file.idle(idle)


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
    return defaults | model_options(init_from, chosen.get("model.architecture"))


def model_options(init_from: str | None, architecture: str | None = None) -> dict[str, Any]:
    """The model options of the run to start from, {"model.field": value}.

    They are the defaults of the run that starts from its parameters, its dropout rates too: a model
    that was trained without dropout would start at a far higher loss with it. Empty if there is no
    such run; the reader of its parameters reports that.

    Args:
      init_from: workdir of the run to start from.
      architecture: the architecture of the run that starts, if its config sets one. An
        encoder-decoder takes the options of its encoder from an encoder-only run, and of both
        stacks from a decoder-only run.

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
            user_modules.load_modules((), init_from)  # names the file that is missing
    saved = options.get("architecture")
    if architecture == "encoder_decoder" and saved in ("encoder_only", "decoder_only"):
        single = {name: options.pop(name, None) for name in _SINGLE_STACK_OPTIONS}
        options["num_encoder_layers"] = single["num_layers"]
        if saved == "decoder_only":
            options["num_decoder_layers"] = single["num_layers"]
            if single["tie_embeddings"] in ("none", "inputs"):  # it keeps its projection
                options["tie_embeddings"] = "inputs"
    elif (saved, architecture) == ("decoder_only", "encoder_only"):
        del options["architecture"]
    return _parse_tree({"model": options}, Origin("loaded config", f"{init_from}/config.json"))


def different_sizes(settings: Settings) -> str:
    """Lists the sizes of the model that differ from those of the run to start from, for messages;
    empty if there are none."""
    options = model_options(settings.train.init_from, settings.model.architecture)
    pairs = {name: (settings.values.get(name), value) for name, value in options.items()}
    return ", ".join(
        f"config.{name} is {size}, and {saved} there"
        for name, (size, saved) in pairs.items()
        if size != saved and {type(size), type(saved)} <= {int, type(None)}
    )


def _check_trainable(settings: Settings, defaults: Mapping[str, Any]) -> None:
    """Checks a config to train; a trained run need not pass.

    Raises:
      UserError: a field differs from its defaults and nothing reads it, or sections contradict each
        other (`check_sections`).
    """
    values = settings.values
    unread = [name for name in FIELDS if name in settings.resolved.unread]
    changed = [name for name in unread if values[name] not in (defaults[name], DEFAULTS[name])]
    not_loaded = [name for name in changed if not settings.origin(name).is_loaded]
    refuse_unread(settings.resolved, not_loaded)
    refuse_unread_layers(settings.resolved)
    check_sections(settings)


def _require_modules(settings: Settings) -> None:
    """Raises UserError if a config file, or a file beside it, registered a component of the config.

    A run could not name that file, for the user to give again.
    """
    for (field, name), module in user_modules.user_components(settings).items():
        if module not in sys.modules:
            raise UserError(
                f"config.{field} is {name!r}, which a config file registers or imports from "
                "beside it: put it into a file of its own, and give that as --modules=FILE"
            )


def build_settings(resolved: Resolved, origins: Mapping[str, Origin]) -> Settings:
    """Makes the dataclass of each section.

    Raises:
      UserError: a value that its dataclass refuses, or a name that is in no registry; section and
        reason are named.
    """
    values = resolved.values
    sections: dict[str, Any] = {}
    place = ""
    try:
        for section, cls in SECTIONS.items():
            place = f"{section}: "
            arguments = {name.partition(".")[2]: values[name] for name in SECTION_FIELDS[section]}
            entries = [entry for entry in resolved.options if entry.startswith(f"{section}.")]
            if entries:
                arguments["options"] = tuple(_build_options(entry, resolved) for entry in entries)
            sections[section] = cls(**arguments)
            _check_choices(section, values)
        place = ""  # of the seed, which is in no section
        settings = Settings(**sections, seed=values["seed"], origins=origins)
    except ValueError as error:
        raise UserError(f"config.{place}{error}") from error
    vars(settings)["resolved"] = resolved  # fills the cached property
    return settings


def _build_options(entry: str, resolved: Resolved) -> Any:
    """Options of "section.entry" as their dataclass; errors as of `build_settings`."""
    cls = resolved.options[entry]
    names = fields_of(entry, cls)
    with user_errors(f"config.{entry}"):
        options = cls(**{name.rpartition(".")[2]: resolved.values[name] for name in names})
        check_fields(options)
    return options


def _check_choices(section: str, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a field of a section names no entry of its registry."""
    for chooser, registry in CHOICES.items():
        # The names in data.name are found by data.sources; a default is an entry.
        is_checked = registry.section == section and chooser != "data.name"
        if not is_checked or values[chooser] in (None, DEFAULTS[chooser]):
            continue
        for name in values[chooser].split(",") if registry.several else [values[chooser]]:
            registry.find(name)  # the error names the nearest


def chosen_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that differ from the defaults of their dataclasses, and unknown ones."""
    fields = tables().fields
    return {
        name: value
        for name, value in values.items()
        if name not in fields or value != fields[name].default
    }


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flattens nested sections and options, {section: {field: value, entry: {option: value}}}, to
    {"section.field": value, "section.entry.option": value}."""
    with_options = tables().options
    values = {}
    for section, content in tree.items():
        if section not in SECTIONS or not isinstance(content, Mapping):
            values[section] = content
            continue
        for name, value in content.items():
            path = f"{section}.{name}"
            if path in with_options and isinstance(value, Mapping):
                values |= {f"{path}.{option}": chosen for option, chosen in value.items()}
            else:
                values[path] = value
    return values


def nested(values: Mapping[str, Any], group: type = dict) -> Any:
    """The inverse of `flatten`: {section: {field: value, entry: {option: value}}}, of objects of
    the type `group`."""
    tree = group()
    for section in SECTIONS:
        tree[section] = group()
    for name, value in values.items():
        *path, field = name.split(".")
        branch = tree
        for part in path:
            if part not in branch:
                branch[part] = group()
            branch = branch[part]
        branch[field] = value
    return tree


def parsed(values: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Converts each value of {"section.field": value} to the type of its field.

    Args:
      values: texts, as given in a shell, are parsed unless the field is a text.
      where: the source of the values, for messages.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    fields = tables().fields
    typed = {}
    for name, value in values.items():
        if name not in fields:
            raise _unknown_field(str(name), where)
        if name == "model.layers":
            value = _read_layers(value, where)
        try:
            typed[name] = fields[name].typed(value)
        except ValueError as error:
            raise UserError(f"{where}: config.{name} {error}") from error
    return typed


def _read_layers(value: Any, where: str) -> Any:
    """The text of a pattern of layers; errors as of `parsed`."""
    if isinstance(value, str) and read_text(value) is None:
        return None
    try:
        text = pattern_text(value)
        # Only for its errors; `Field.typed` refuses what is no text.
        layers_of(text if isinstance(text, str) else None)
    except ValueError as error:
        raise UserError(f"{where}: config.model.{error}") from error
    return text


def _unknown_field(name: str, where: str) -> UserError:
    """The error for a name that is no field."""
    fields = tables().fields
    inside = [field for field in fields if field.startswith(f"{name}.")]
    if inside:  # of a section, or options
        return UserError(f"{where}: config.{name} has fields; set them, as config.{inside[0]}")
    entry = name.rpartition(".")[0]
    group = entry if entry in tables().options else name.partition(".")[0]
    siblings = [field for field in fields if field.rpartition(".")[0] == group]
    nearest = suggest_fields(name, [*SECTIONS, *fields])
    if nearest:
        hint = f"did you mean {' or '.join(f'config.{field}' for field in nearest)}?"
    elif siblings:
        names = (field.rpartition(".")[2] for field in siblings)
        hint = f"the fields of config.{group} are {', '.join(names)}"
    else:
        hint = f"the sections are {', '.join(SECTIONS)}"
    return UserError(f"{where}: there is no config.{name}; {hint}")


def refuse_unchosen(resolved: Resolved, names: Iterable[str], where: str) -> None:
    """Raises UserError if an option among `names` is of an entry that is not chosen.

    Args:
      resolved: the whole config.
      names: the fields that were set, all of them known.
      where: the source of their values, for messages.
    """
    for name in names:
        if name not in resolved.values:
            entry = name.rpartition(".")[0]
            chooser = tables().choosers[entry]
            chosen = ", ".join(map(repr, resolved.names[chooser])) or "none"
            raise UserError(
                f"{where}: there is no config.{name} while config.{chooser} is {chosen}; leave it "
                f"out, or set {chooser} to {entry.partition('.')[2]!r}"
            )


def refuse_unread(resolved: Resolved, names: Iterable[str], where: str = "") -> None:
    """Raises UserError if one of `names` has no effect, given the other fields.

    Args:
      resolved: the whole config.
      names: the fields that were set.
      where: where they were set, for the message, if not as fields.
    """
    for name in names:
        if name in resolved.unread:
            chooser = resolved.unread[name]
            chosen = resolved.values[chooser]
            unread = CHOICES[chooser].unread
            readers = [entry for entry in unread if name not in unread[entry]]
            raise UserError(
                f"{where}config.{name} is {short_repr(resolved.values[name])}, but {chooser} "
                f"{'none' if chosen is None else repr(chosen)} does not read it "
                f"({', '.join(readers[:4] + ['...'] * (len(readers) > 4))} would); "
                f"leave it out or change {chooser}"
            )


def refuse_unread_layers(resolved: Resolved) -> None:
    """Raises UserError if an override of a layer has no effect in it."""
    for layer in resolved.layers:
        # A whole config whose layers are all like this one.
        of_layer = Resolved.of({**resolved.values, "model.layers": None, **layer})
        refuse_unchosen(of_layer, layer, "config.model.layers")
        changed = [name for name in layer if layer[name] != resolved.values.get(name)]
        refuse_unread(of_layer, changed, "config.model.layers: ")


def check_sections(settings: Settings) -> None:
    """Raises UserError if sections of a config to train contradict each other."""
    _check_examples(settings)
    _check_embeddings(settings)
    _check_adapters(settings)
    _check_schedule(settings)
    _check_masks(settings)
    _check_sampling(settings)


def _check_examples(settings: Settings) -> None:
    """Refuses data whose examples lack what the task reads."""
    needed = TASKS[settings.task.name].keys
    for name in settings.data.name.split(","):
        keys = SOURCES[name].keys if name in SOURCES else None
        if keys is not None and not needed <= {*keys}:
            own_files = [
                other
                for other, source in SOURCES.items()
                if source.keys is not None and needed <= {*source.keys} and other != "labeled_tsv"
                if {"data.train_text", "data.train_source"} & {*(source.reads or ())}
            ]
            raise UserError(
                f"config.data.name is {name!r}, whose examples have {' and '.join(keys)}, but task "
                f"{settings.task.name} reads {' and '.join(sorted(needed))}: for files of "
                f"your own, set it to {' or '.join(own_files)}"
            )


def _check_embeddings(settings: Settings) -> None:
    """Refuses one embedding for several vocabularies."""
    kind = TASKS[settings.task.name]
    tie = settings.model.tie_embeddings
    is_shared = settings.tokenizer.joint and not kind.symbols
    has_sides = len({*kind.texts, *kind.symbols}) > 1
    if has_sides and tie in ("all", "inputs") and not is_shared:
        raise UserError(
            f"config.model.tie_embeddings {tie!r} shares one embedding among all sides, and "
            f"{'here' if kind.symbols else 'with config.tokenizer.joint false'} each has a "
            "vocabulary of its own: set tie_embeddings to 'target' or 'none'"
        )


def _check_adapters(settings: Settings) -> None:
    """Refuses options that contradict adapters: they decide what is trained, in single layers."""
    others = {
        "optimizer.frozen": settings.optimizer.frozen,
        "model.scan_layers": settings.model.scan_layers,
        "model.architecture 'recurrent'": settings.model.architecture == "recurrent",
    }
    for name, is_set in others.items():
        if is_set and settings.lora.rank is not None:
            raise UserError(f"config.lora.rank does not go with {name}; leave one of them out")


def _check_sampling(settings: Settings) -> None:
    """Refuses random tokens where another model's predictions for fixed tokens are stored."""
    distillation = settings.distillation
    others = {
        f"task.name {settings.task.name!r}": TASKS[settings.task.name].stored,
        "train.distillation.top_k": distillation and distillation.top_k,
    }
    for name, is_stored in others.items():
        if is_stored and settings.tokenizer.sampling:
            raise UserError(
                f"config.tokenizer.sampling does not go with {name}, which stores another model's "
                "predictions for one segmentation of the text; leave one of them out"
            )


def _check_masks(settings: Settings) -> None:
    """Refuses a schedule of masks that reaches no final share."""
    name = settings.task.mask_schedule
    if name not in SCHEDULES or not SCHEDULES[name].decays:
        decaying = [schedule for schedule in SCHEDULES if SCHEDULES[schedule].decays]
        raise UserError(
            f"config.task.mask_schedule is {name!r}, not a schedule that decays: set it to "
            f"{', '.join(decaying[:-1])} or {decaying[-1]}"
        )


def _check_schedule(settings: Settings) -> None:
    """Refuses a decay that overlaps the warm-up or ends before training does."""
    optimizer = settings.optimizer
    cooldown = optimizer.cooldown_steps
    num_steps = settings.train.num_steps
    end = optimizer.decay_steps or num_steps
    if cooldown is not None and cooldown > end - optimizer.warmup_steps:
        raise UserError(
            f"config.optimizer.cooldown_steps is {cooldown}, but of {end} steps warmup_steps "
            f"{optimizer.warmup_steps} leave fewer: lower one of them"
        )
    if SCHEDULES[optimizer.schedule].decays and num_steps > end and not optimizer.final_ratio:
        raise UserError(
            f"config.train.num_steps is {num_steps}, but optimizer.schedule {optimizer.schedule!r} "
            f"ends at a learning rate of 0 after optimizer.decay_steps {end}: raise it too, or set "
            "optimizer.final_ratio"
        )
