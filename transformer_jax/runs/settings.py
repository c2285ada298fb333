# SPDX-License-Identifier: Apache-2.0
"""The sections and fields of a config, their defaults, and the validation of their values.

Besides the fields of the sections there are the options of the chosen components, "section.entry.
option".

A config is refused if a field has a wrong type (`parsed`) or no effect (`refuse_unread`), an option
belongs to a component that is not chosen (`refuse_unchosen`), or sections contradict each other
(`check_sections`). A value that its own section cannot use is refused by the dataclass of the
section. `config.resolve` does all of it, once per config.
"""

import contextlib
import dataclasses
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import SOURCES
from transformer_jax.errors import UserError
from transformer_jax.fields import Field, fields_of
from transformer_jax.inference.config import CONSTRAINTS, SEARCHES, DecodeConfig, searches_of
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.logs.trackers import TRACKERS
from transformer_jax.losses import TOKEN_LOSSES, Distillation, DistillationOptions, TokenLoss
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layer_pattern import LAYER_FIELDS, PARAMETERS, pattern_text, read_pattern
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.nn.transformer import BLOCKS, RESIDUALS
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.ranges import Seed, check_fields, read_text, short_repr
from transformer_jax.registry import Registry, number_of_changes
from transformer_jax.scoring import METRICS
from transformer_jax.suggestions import suggest_fields
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.training.callbacks import CALLBACKS
from transformer_jax.training.config import LoraConfig, TrainConfig
from transformer_jax.training.evaluation import EvalConfig
from transformer_jax.training.optimizer import OPTIMIZERS, TRANSFORMS, OptimizerConfig
from transformer_jax.training.schedules import SCHEDULES


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a value of a config.

    Attributes:
      kind: the default of the field, a config file, this command (or the Python code that gives a
        config), a config that need not be trainable, the config.json of a run that is to be used,
        or of one that is trained further or again ("loaded config"), or a published model.
      where: what messages call it: the path of the file, say.
    """

    kind: Literal[
        "default",
        "config file",
        "command",
        "config",
        "loaded run",
        "loaded config",
        "published model",
    ]
    where: str

    @property
    def is_loaded(self) -> bool:
        """Whether the value may come from strangers."""
        return self.kind in ("loaded run", "loaded config", "published model")


DEFAULT = Origin("default", "defaults")
COMMAND = Origin("command", "override")


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
      origins: where the values come from, {"section.field": origin}; a field that is not there has
        its default.
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
    origins: Mapping[str, Origin] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @functools.cached_property
    def resolved(self) -> "Resolved":
        """The values of all fields, and the entries that they choose."""
        # Runs only after `dataclasses.replace` of a section: `build_settings` sets the attribute.
        values = {"seed": self.seed}
        for section, names in _NAMES.items():
            config = getattr(self, section)
            values |= {name: getattr(config, name.partition(".")[2]) for name in names}
        resolved = Resolved.of(values)
        for entry, cls in resolved.options.items():
            options = getattr(self, entry.partition(".")[0]).options_of(cls)
            for name in fields_of(entry, cls):
                resolved.values[name] = getattr(options, name.rpartition(".")[2])
        return resolved

    @property
    def values(self) -> Mapping[str, Any]:
        """The value of every field, {"section.field": value}, options of components too."""
        return self.resolved.values

    def origin(self, name: str) -> Origin:
        """The origin of the value of the field "section.field"."""
        return self.origins.get(name, DEFAULT)

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training data."""
        return self.seed if self.data.order_seed is None else self.data.order_seed

    @property
    def distillation(self) -> DistillationOptions | None:
        """Options of the loss, if it compares with the predictions of a teacher."""
        if not issubclass(TOKEN_LOSSES.get(self.train.loss, TokenLoss), Distillation):
            return None
        return self.train.options_of(DistillationOptions)

    @property
    def teacher(self) -> str | None:
        """The run that teaches, if there is one."""
        return self.distillation.teacher if self.distillation else None

    @property
    def tokenizers_from(self) -> str | None:
        """The run whose tokenizers are used; None: they are trained."""
        return self.train.init_from or self.teacher


SECTIONS: dict[str, type] = {
    name: hint
    for name, hint in typing.get_type_hints(Settings).items()
    if isinstance(hint, type) and dataclasses.is_dataclass(hint)
}

FIELDS: dict[str, Field] = {
    name: field
    for section, cls in SECTIONS.items()
    for name, field in fields_of(section, cls).items()
} | {"seed": Field(int, optional=False, default=0)}
"""The fields of the sections, {"section.field": field}."""

_NAMES: dict[str, tuple[str, ...]] = {
    section: tuple(name for name in FIELDS if name.startswith(f"{section}."))
    for section in SECTIONS
}
"""The fields of each section, {section: ("section.field", ...)}."""

DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}
"""The default of every field, before those of task and architecture (`config.defaults_for`)."""


_REGISTRIES: tuple[Registry[Any], ...] = (
    TASKS,
    METRICS,
    MODELS,
    BLOCKS,
    RESIDUALS,
    ATTENTION_LAYERS,
    FEED_FORWARDS,
    POSITIONS,
    SCALINGS,
    ACTIVATIONS,
    NORMS,
    CELLS,
    TOKENIZERS,
    SOURCES,
    OPTIMIZERS,
    TRANSFORMS,
    SCHEDULES,
    SEARCHES,
    CONSTRAINTS,
    TOKEN_LOSSES,
    TRACKERS,
    CALLBACKS,
)

CHOICES: dict[str, Registry[Any]] = {registry.field: registry for registry in _REGISTRIES}
"""Fields that name an entry of a registry, {"section.field": registry}."""

# "section.NAME" is a field or an entry with options, so no entry may have the name of a field.
for _registry in _REGISTRIES:
    _registry.reserve([name.partition(".")[2] for name in _NAMES[_registry.section]])


class _Tables(NamedTuple):
    """Contents of the registries.

    Attributes:
      options: dataclasses of options, {"section.entry": class}.
      choosers: the fields whose entries have options, {"section.entry": "section.field"}.
      fields: all fields, options too, {"section.field": field}.
    """

    options: dict[str, type]
    choosers: dict[str, str]
    fields: dict[str, Field]


@functools.lru_cache(maxsize=1)
def _tables_after(changes: int) -> _Tables:
    """Builds the tables; cached until a registry changes, as by a user's module."""
    tables = _Tables({}, {}, dict(FIELDS))
    for chooser, registry in CHOICES.items():
        for name in registry:
            options = registry.options(name)
            if options:
                entry = f"{registry.section}.{name}"
                tables.options[entry] = options
                tables.choosers[entry] = chooser
                tables.fields.update(fields_of(entry, options))
    return tables


def _tables() -> _Tables:
    return _tables_after(number_of_changes())


_tables()  # now, so that a command does not wait for them


def option_classes() -> dict[str, type]:
    """Dataclasses of the options of all entries, {"section.entry": class}."""
    return dict(_tables().options)


def all_fields() -> dict[str, Field]:
    """The fields of the sections and the options of all components, {"section.field": field}."""
    return dict(_tables().fields)


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The values of a whole config, and the registry entries that they name.

    Attributes:
      values: the value of every field, {"section.field": value}, options of the chosen entries too.
      layers: overrides of each layer in the pattern of a model, {"model.field": value}; empty
        without `model.layers`.
      names: {"section.field": names of entries}: several for `data.name` or in a pattern of layers,
        none where the field is None.
      options: dataclasses of their options, {"section.entry": class}.
    """

    values: dict[str, Any]
    layers: Sequence[Mapping[str, Any]]
    names: Mapping[str, Sequence[str]]
    options: Mapping[str, type]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Resolved":
        """Adds defaults of the options of chosen entries, and drops options of others."""
        layers = _layers_of(values["model.layers"])
        names = {chooser: chosen_names(chooser, values, layers) for chooser in CHOICES}
        all_options = _tables().options
        options = {}
        fields = dict(FIELDS)
        for chooser, registry in CHOICES.items():
            for name in names[chooser]:
                entry = f"{registry.section}.{name}"
                if entry in all_options:
                    options[entry] = all_options[entry]
                    fields |= fields_of(entry, options[entry])
        completed = {name: values.get(name, field.default) for name, field in fields.items()}
        return cls(completed, layers, names, options)

    @functools.cached_property
    def unread(self) -> dict[str, str]:
        """The fields that have no effect, {"section.field": the field whose choice makes it so}."""
        unread: dict[str, str] = {}
        for chooser, registry in CHOICES.items():
            by_name = [registry.unread[name] for name in self.names[chooser] if name in registry]
            if by_name:  # a field that one of several chosen entries reads has an effect
                unread |= dict.fromkeys(frozenset.intersection(*by_name), chooser)
        return unread


def _layers_of(text: str | None) -> list[dict[str, Any]]:
    pattern = read_pattern(text, ModelConfig) if text else ()
    owners = [layer.get(PARAMETERS, i) for i, layer in enumerate(pattern)]
    layers = [pattern[owner % len(pattern)] for owner in owners]
    return [{f"model.{k}": v for k, v in layer.items() if k != PARAMETERS} for layer in layers]


def chosen_names(
    chooser: str, values: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The registry entries that a field names; `layers` as in `Resolved`."""
    if chooser.removeprefix("model.") in LAYER_FIELDS:
        names = [layer.get(chooser, values[chooser]) for layer in layers or ({},)]
        if chooser == ATTENTION_LAYERS.field:  # cross-attention is always the same layer
            names += getattr(MODELS.get(values["model.architecture"]), "cross_attention", ())
        return list(dict.fromkeys(names))
    if chooser == "decode.search":
        # Without a search, temperature and beam size choose one.
        return searches_of(
            values["decode.search"], values["decode.temperature"], values["decode.beam_size"]
        )
    return [] if values[chooser] is None else values[chooser].split(",")


@contextlib.contextmanager
def errors_of(part: str) -> Iterator[None]:
    """Turns a ValueError into a UserError that names the part of the config to change."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"config.{part}: {error}") from error


def build_settings(resolved: Resolved, origins: Mapping[str, Origin]) -> Settings:
    """Makes the dataclass of each section.

    Raises:
      UserError: a value that its dataclass refuses, or a name that is in no registry; section and
        reason are named.
    """
    values = resolved.values
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        arguments = {name.partition(".")[2]: values[name] for name in _NAMES[section]}
        entries = [entry for entry in resolved.options if entry.startswith(f"{section}.")]
        if entries:
            arguments["options"] = tuple(_build_options(entry, resolved) for entry in entries)
        with errors_of(section):
            sections[section] = cls(**arguments)
            _check_choices(section, values)
    try:
        settings = Settings(**sections, seed=values["seed"], origins=origins)
    except ValueError as error:
        raise UserError(f"config.{error}") from error
    vars(settings)["resolved"] = resolved  # fills the cached property
    return settings


def _build_options(entry: str, resolved: Resolved) -> Any:
    """Options of "section.entry" as their dataclass; errors as of `build_settings`."""
    cls = resolved.options[entry]
    names = fields_of(entry, cls)
    with errors_of(entry):
        options = cls(**{name.rpartition(".")[2]: resolved.values[name] for name in names})
        check_fields(options)
    return options


def _check_choices(section: str, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a field of a section names no entry of its registry."""
    for chooser, registry in CHOICES.items():
        # The names in data.name are found by data.sources.
        is_checked = registry.section == section and chooser != "data.name"
        if not is_checked or values[chooser] is None:
            continue
        for name in values[chooser].split(",") if registry.several else [values[chooser]]:
            registry.find(name)


def chosen_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that differ from the defaults of their dataclasses, and unknown ones."""
    fields = _tables().fields
    return {
        name: value
        for name, value in values.items()
        if name not in fields or value != fields[name].default
    }


_VALIDATION = ("task.name", "data.name", "data.documents", "data.max_length")
_VALIDATION_STARTS = ("data.valid_", "data.max_source", "data.max_target")


def is_validation_field(name: str) -> bool:
    """Returns True for a field on which the examples of the validation split depend."""
    return name in _VALIDATION or name.startswith(_VALIDATION_STARTS)


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flattens nested sections and options, {section: {field: value, entry: {option: value}}}, to
    {"section.field": value, "section.entry.option": value}."""
    entries = _tables().options
    values = {}
    for section, content in tree.items():
        if section not in SECTIONS or not isinstance(content, Mapping):
            values[section] = content
            continue
        for name, value in content.items():
            path = f"{section}.{name}"
            if path in entries and isinstance(value, Mapping):
                values |= {f"{path}.{option}": value[option] for option in value}
            else:
                values[path] = value
    return values


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`: {section: {field: value, entry: {option: value}}}."""
    tree: dict[str, Any] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        *groups, field = name.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
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
    fields = _tables().fields
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
        _layers_of(text if isinstance(text, str) else None)
    except ValueError as error:
        raise UserError(f"{where}: config.model.{error}") from error
    return text


def _unknown_field(name: str, where: str) -> UserError:
    """The error for a name that is no field."""
    fields = _tables().fields
    inside = [field for field in fields if field.startswith(f"{name}.")]
    if inside:  # of a section, or options
        return UserError(f"{where}: config.{name} has fields; set them, as config.{inside[0]}")
    entry = name.rpartition(".")[0]
    group = entry if entry in _tables().options else name.partition(".")[0]
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
            chooser = _tables().choosers[entry]
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
                f"({', '.join(readers[:4] + ['...'] * (len(readers) > 4))} would); leave it out"
            )


def refuse_unread_layers(resolved: Resolved) -> None:
    """Raises UserError if an override of a layer has no effect in it."""
    for layer in resolved.layers:
        # A whole config in which every layer is this one.
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
