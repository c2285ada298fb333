# SPDX-License-Identifier: Apache-2.0
"""The sections and fields of a config, their defaults, and the validation of their values.

Besides the fields of the sections there are the options of the chosen components, "section.entry.
option" (`fields_for`).

A config is refused if a field has a wrong type (`parsed`) or no effect (`refuse_unread`), an option
belongs to a component that is not chosen (`refuse_unchosen`), or sections contradict each other
(`check_sections`). A value that its own section cannot use is refused by the dataclass of the
section.
"""

import dataclasses
import functools
import operator
import sys
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from transformer_jax.checkpoints.config import CheckpointConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import SOURCES
from transformer_jax.errors import UserError
from transformer_jax.fields import Field, fields_of
from transformer_jax.inference.config import SEARCHES, DecodeConfig, searches_of
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.logs.trackers import TRACKERS
from transformer_jax.losses import TOKEN_LOSSES, Distillation, DistillationOptions, TokenLoss
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layer_pattern import LAYER_FIELDS, pattern_text, read_pattern
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.ranges import Seed, check_fields, read_text, short_repr
from transformer_jax.registry import Registry
from transformer_jax.scoring import METRICS
from transformer_jax.suggestions import suggest_fields
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.training.callbacks import CALLBACKS
from transformer_jax.training.config import TrainConfig
from transformer_jax.training.evaluation import EvalConfig
from transformer_jax.training.lora import LoraConfig
from transformer_jax.training.optimizer import OPTIMIZERS, OptimizerConfig
from transformer_jax.training.schedules import SCHEDULES

_VALIDATION = ("task.name", "data.name", "data.documents", "data.max_length")
_VALIDATION_STARTS = ("data.valid_", "data.max_source", "data.max_target")


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
    name: hint for name, hint in typing.get_type_hints(Settings).items() if name != "seed"
}


FIELDS: dict[str, Field] = {
    name: field for item in SECTIONS.items() for name, field in fields_of(*item).items()
} | {"seed": Field(int, optional=False, default=0)}
"""The fields of the sections, {"section.field": field}; `fields_for` adds options."""

DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}
"""The default of every field, before those of task and architecture (`config.defaults_for`)."""


_REGISTRIES: tuple[Registry[Any], ...] = (
    TASKS,
    METRICS,
    MODELS,
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
    SCHEDULES,
    SEARCHES,
    TOKEN_LOSSES,
    TRACKERS,
    CALLBACKS,
)

CHOICES: dict[str, Registry[Any]] = {registry.field: registry for registry in _REGISTRIES}
"""Fields that name an entry of a registry, {"section.field": registry}."""

for _section in SECTIONS:
    _own = [name.removeprefix(f"{_section}.") for name in FIELDS if name.startswith(f"{_section}.")]
    for _registry in _REGISTRIES:
        if _registry.section == _section:
            _registry.reserve(_own)

FORMER_VALUES = {"train.remat": {True: "full", False: "none"}}
"""Fields that were true or false in earlier versions: {field: {old value: new value}}."""


def option_classes(values: Mapping[str, Any] | None = None) -> dict[str, type]:
    """Dataclasses of options, {"section.entry": class}.

    Args:
      values: the values of all fields, whose chosen entries count; None: all entries count.
    """
    return {
        f"{registry.section}.{name}": cls
        for chooser, registry in CHOICES.items()
        for name in (registry if values is None else chosen_names(chooser, values))
        if (cls := registry.options(name)) is not None
    }


def option_fields(values: Mapping[str, Any] | None = None) -> dict[str, Field]:
    """Options of components, {"section.entry.option": field}; `values` as in `option_classes`."""
    classes = option_classes(values)
    return {name: field for item in classes.items() for name, field in fields_of(*item).items()}


def fields_for(values: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a config with these values: those of all configs, and options."""
    return FIELDS | option_fields(values)


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all fields, with defaults of options; options of other entries are dropped."""
    return {name: values.get(name, field.default) for name, field in fields_for(values).items()}


def chosen_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that differ from the defaults of their dataclasses, and unknown ones."""
    known = fields_for(values)
    return {
        name: value
        for name, value in values.items()
        if name not in known or value != known[name].default
    }


def layers_of(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Overrides of each layer in the pattern of a model, {"model.field": value}; empty without
    `model.layers`."""
    text = values["model.layers"]
    pattern = read_pattern(text, ModelConfig) if text else ()
    return [{f"model.{name}": value for name, value in one.items()} for one in pattern]


def is_validation_field(name: str) -> bool:
    """Returns True for a field on which the examples of the validation split depend."""
    return name in _VALIDATION or name.startswith(_VALIDATION_STARTS)


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flattens nested sections and options, {section: {field: value, entry: {option: value}}}, to
    {"section.field": value, "section.entry.option": value}."""
    groups = SECTIONS.keys() | option_classes().keys()

    def walk(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            path = f"{prefix}{name}"
            if path in groups and isinstance(value, Mapping):
                yield from walk(value, f"{path}.")
            else:
                yield path, value

    return dict(walk(tree, ""))


def field_of(config: Any, name: str) -> Any:
    """The value of the field "section.field" of a config."""
    return functools.reduce(operator.getitem, name.split("."), config)


def parsed(values: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Converts each value of {"section.field": value} to the type of its field.

    Args:
      values: texts, as given in a shell, are parsed unless the field is a text.
      where: the source of the values, for messages.

    Raises:
      UserError: an unknown field (the nearest is named) or a value of the wrong type.
    """
    return {name: _parse(name, value, where) for name, value in values.items()}


def _parse(name: Any, value: Any, where: str) -> Any:
    field = _find_field(name, where)
    if isinstance(value, np.generic):
        value = value.item()
    if name == "model.layers":
        value = _read_layers(value, where)
    read = read_text(value) if isinstance(value, str) else value
    if read is None and field.optional:
        return None
    if type(read) is bool and name in FORMER_VALUES:
        return FORMER_VALUES[name][read]
    if field.type is not str:
        value = read
    if field.type is int and type(value) is float and value.is_integer():  # 5e3 is one
        value = int(value)
    if field.type is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    if type(value) is not field.type:  # True is an int to isinstance
        raise UserError(
            f"{where}: config.{name} is {short_repr(value)}; it must be of type "
            f"{field.type.__name__}"
        )
    return value


def _read_layers(value: Any, where: str) -> Any:
    """The text of a pattern of layers; errors as of `parsed`."""
    if isinstance(value, str) and read_text(value) is None:
        return None
    try:
        text = pattern_text(value)
        layers_of({"model.layers": text if isinstance(text, str) else None})
    except ValueError as error:
        raise UserError(f"{where}: config.model.{error}") from error
    return text


def _find_field(name: Any, where: str) -> Field:
    if name in FIELDS:
        return FIELDS[name]
    fields, options = FIELDS | option_fields(), option_classes()
    if name in fields:
        return fields[name]
    if name in SECTIONS:
        raise UserError(f"{where}: config.{name} is a section; set one of its fields")
    if name in options:
        example = next(iter(fields_of(name, options[name])), name)
        raise UserError(f"{where}: config.{name} has options; set them, as config.{example}")
    name = str(name)
    section, entry = name.partition(".")[0], name.rpartition(".")[0]
    if found := suggest_fields(name, [*SECTIONS, *fields]):
        hint = f"did you mean {' or '.join(f'config.{field}' for field in found)}?"
    elif entry in options:
        own = (field.rpartition(".")[2] for field in fields_of(entry, options[entry]))
        hint = f"the options of config.{entry} are {', '.join(own)}"
    elif section in SECTIONS:
        own = (field.partition(".")[2] for field in FIELDS if field.startswith(f"{section}."))
        hint = f"the fields of config.{section} are {', '.join(own)}"
    else:
        hint = f"the sections are {', '.join(SECTIONS)}"
    raise UserError(f"{where}: there is no config.{name}; {hint}")


def refuse_unchosen(values: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """Raises UserError if an option among `names` is of an entry that is not chosen.

    Args:
      values: the values of all fields.
      names: the fields that were set, all of them known.
      where: the source of their values, for messages.
    """
    known = fields_for(values)
    for name in names:
        if name not in known:
            section, entry, _ = name.split(".")
            chooser = next(
                field
                for field, registry in CHOICES.items()
                if registry.section == section and registry.options(entry)
            )
            chosen = ", ".join(map(repr, chosen_names(chooser, values))) or "none"
            raise UserError(
                f"{where}: there is no config.{name} while config.{chooser} is {chosen}; leave it "
                f"out, or set {chooser} to {entry!r}"
            )


def refuse_unread(values: Mapping[str, Any], names: Iterable[str], where: str = "") -> None:
    """Rejects config fields that have no effect, given the other fields.

    Registry entries declare what they read. A field that any entry of a registry lists in `reads`
    is read only by the entries that list it: layer kinds by an architecture, momenta by an
    optimizer, files by a data set. A field in an entry's `ignores` is read by all others unless
    they ignore it too.

    Args:
      values: the values of all fields, {"section.field": value}.
      names: the fields that were set.
      where: where they were set, for the message, if not as fields.

    Raises:
      UserError: one of them has no effect.
    """
    unread = unread_fields(values)
    for name in names:
        if name in unread:
            raise UserError(
                f"{where}config.{name} is {short_repr(values[name])}, but {unread[name]}; leave it "
                "out"
            )


def unread_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """The fields that have no effect in a config, {"section.field": the reason}."""
    unread = {}
    for chooser, registry in CHOICES.items():
        chosen = [registry[name] for name in chosen_names(chooser, values) if name in registry]
        declared = _declared(registry)
        for field in _optional(registry) if chosen else ():
            if not any(_reads(entry, field, declared) for entry in chosen):
                value = "none" if values[chooser] is None else repr(values[chooser])
                others = _readers(registry, field, declared)
                unread[field] = f"{chooser} {value} does not read it ({others} would)"
    return unread


def chosen_names(chooser: str, values: Mapping[str, Any]) -> list[str]:
    """The registry entries that a field names: several for `data.name` or in a pattern of layers,
    none if it is None."""
    if chooser.removeprefix("model.") in LAYER_FIELDS:
        layers = layers_of(values) or [{}]
        names = [layer.get(chooser, values[chooser]) for layer in layers]
        if chooser == ATTENTION_LAYERS.field:  # cross-attention is always the same layer
            names += getattr(MODELS.get(values["model.architecture"]), "cross_attention", ())
        return list(dict.fromkeys(names))
    if chooser == "decode.search":
        own = (values[f"decode.{name}"] for name in ("search", "temperature", "beam_size"))
        return searches_of(*own)
    return [] if values[chooser] is None else values[chooser].split(",")


def _declared(registry: Registry[Any]) -> set[str]:
    """The fields in `reads` of any entry of a registry."""
    return {field for entry in registry.values() for field in getattr(entry, "reads", None) or ()}


def _optional(registry: Registry[Any]) -> set[str]:
    """The fields that some entries of a registry do not read."""
    ignored = {field for entry in registry.values() for field in getattr(entry, "ignores", ())}
    return _declared(registry) | ignored


def _reads(entry: Any, field: str, declared: Collection[str]) -> bool:
    """Returns True if an entry reads a field; without `reads` it reads all declared fields."""
    own = getattr(entry, "reads", None)
    ignored = field in getattr(entry, "ignores", ())
    return not ignored and (own is None or field in own or field not in declared)


def _readers(registry: Registry[Any], field: str, declared: Collection[str]) -> str:
    """Names of up to four entries that declare to read a field, or that do not ignore it."""
    entries = registry.items()
    names = [name for name, entry in entries if field in (getattr(entry, "reads", None) or ())]
    if field not in declared:
        names = [name for name, entry in entries if _reads(entry, field, declared)]
    return ", ".join(names[:4] + ["..."] * (len(names) > 4))


def refuse_unread_layers(values: Mapping[str, Any]) -> None:
    """Raises UserError if an override of a layer has no effect in it."""
    whole = {"model.layers": None, "model.full_attention_every": None}
    for layer in layers_of(values):
        own, where = {**values, **whole, **layer}, "config.model.layers: "
        refuse_unchosen(own, layer, where.removesuffix(": "))
        refuse_unread(own, [name for name in layer if layer[name] != values.get(name)], where)


def check_sections(settings: Settings) -> None:
    """Raises UserError if sections of a config to train contradict each other."""
    _check_embeddings(settings)
    _check_adapters(settings)
    _check_schedule(settings)
    _check_sampling(settings)


def _check_embeddings(settings: Settings) -> None:
    """Refuses one embedding for several vocabularies."""
    kind = TASKS[settings.task.name]
    one_for_all, tie = settings.tokenizer.joint and not kind.symbols, settings.model.tie_embeddings
    several = len({*kind.texts, *kind.symbols}) > 1
    if several and tie in ("all", "inputs") and not one_for_all:
        raise UserError(
            f"config.model.tie_embeddings {tie!r} shares one embedding among all sides, and "
            f"{'here' if kind.symbols else 'with config.tokenizer.joint false'} each has a "
            "vocabulary of its own: set tie_embeddings to 'target' or 'none'"
        )


def _check_adapters(settings: Settings) -> None:
    """Refuses options that contradict adapters: they decide what is trained, in single layers."""
    if settings.lora.rank is None:
        return
    for name, given in (
        ("optimizer.frozen", settings.optimizer.frozen),
        ("model.scan_layers", settings.model.scan_layers),
        ("model.architecture 'recurrent'", settings.model.architecture == "recurrent"),
    ):
        if given:
            raise UserError(f"config.lora.rank does not go with {name}; leave one of them out")


def _check_sampling(settings: Settings) -> None:
    """Refuses random tokens where another model's predictions for fixed tokens are stored."""
    distillation = settings.distillation
    for name, given in (
        (f"task.name {settings.task.name!r}", TASKS[settings.task.name].stored),
        ("train.distillation.top_k", distillation and distillation.top_k),
    ):
        if settings.tokenizer.sampling and given:
            raise UserError(
                f"config.tokenizer.sampling does not go with {name}, which stores another model's "
                "predictions for one segmentation of the text; leave one of them out"
            )


def _check_schedule(settings: Settings) -> None:
    """Refuses a decay that overlaps the warm-up or ends before training does."""
    optimizer, num_steps = settings.optimizer, settings.train.num_steps
    end, cooldown = optimizer.decay_steps or num_steps, optimizer.cooldown_steps
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
