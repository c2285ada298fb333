# SPDX-License-Identifier: Apache-2.0
"""A whole config as dataclasses, one for each section, and tables of its fields and choices.

Besides the fields of the sections there are the options of the chosen components, "section.entry.
option". `config.resolve` makes settings of what a user writes.
"""

import dataclasses
import functools
import operator
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from transformer_jax.checkpoints.store import CheckpointConfig
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import SOURCES
from transformer_jax.fields import Field, fields_of
from transformer_jax.inference.config import CONSTRAINTS, SEARCHES, DecodeConfig, searches_of
from transformer_jax.logs.run_log import LoggingConfig
from transformer_jax.logs.trackers import TRACKERS
from transformer_jax.losses import TOKEN_LOSSES, Distillation, DistillationOptions, TokenLoss
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layer_pattern import LAYER_FIELDS, PARAMETERS, read_pattern
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.nn.transformer import BLOCKS, RESIDUALS
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.ranges import Seed, check_fields
from transformer_jax.registry import Registry, number_of_changes
from transformer_jax.scoring import METRICS
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.corruptions import OBJECTIVES
from transformer_jax.tokenization import TokenizerConfig
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.training.callbacks import CALLBACKS
from transformer_jax.training.config import LoraConfig, TrainConfig
from transformer_jax.training.evaluation import EvalConfig
from transformer_jax.training.optimizer import OPTIMIZERS, TRANSFORMS, OptimizerConfig
from transformer_jax.training.schedules import SCHEDULES

_Loaded = Literal["loaded run", "loaded config", "published model"]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a value of a config.

    Attributes:
      kind: the default of the field, a config file, this command (or the Python code that gives a
        config), a config that need not be trainable, the config.json of a run that is to be used,
        or of one that is trained further or again ("loaded config"), or a published model.
      where: what messages call it: the path of the file, say.
    """

    kind: Literal["default", "config file", "command", "config"] | _Loaded
    where: str

    @property
    def is_loaded(self) -> bool:
        """True for a value that may come from strangers."""
        return self.kind in typing.get_args(_Loaded)


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
        resolved = Resolved.of({name: operator.attrgetter(name)(self) for name in FIELDS})
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
} | {"seed": Field(int, words=(), default=0)}
"""The fields of the sections, {"section.field": field}."""

SECTION_FIELDS: dict[str, tuple[str, ...]] = {
    section: tuple(name for name in FIELDS if name.startswith(f"{section}."))
    for section in SECTIONS
}
"""The fields of each section, {section: ("section.field", ...)}."""

DEFAULTS: dict[str, Any] = {name: field.default for name, field in FIELDS.items()}
"""The default of every field, before those of task and architecture (`config.defaults_for`)."""


_REGISTRIES: tuple[Registry[Any], ...] = (
    *(TASKS, OBJECTIVES, METRICS, MODELS, BLOCKS, RESIDUALS, ATTENTION_LAYERS, FEED_FORWARDS),
    POSITIONS,
    *(SCALINGS, ACTIVATIONS, NORMS, CELLS, TOKENIZERS, SOURCES, OPTIMIZERS, TRANSFORMS, SCHEDULES),
    *(SEARCHES, CONSTRAINTS, TOKEN_LOSSES, TRACKERS, CALLBACKS),
)

CHOICES: dict[str, Registry[Any]] = {registry.field: registry for registry in _REGISTRIES}
"""Fields that name an entry of a registry, {"section.field": registry}."""

# "section.NAME" is a field or an entry with options, so no entry may have the name of a field.
for _registry in _REGISTRIES:
    _registry.reserve([name.partition(".")[2] for name in SECTION_FIELDS[_registry.section]])


class Tables(NamedTuple):
    """Contents of the registries.

    Attributes:
      options: dataclasses of options, {"section.entry": class}.
      choosers: the fields whose entries have options, {"section.entry": "section.field"}.
      fields: all fields, options too, {"section.field": field}.
      unread: fields without an effect, {"section.field": {entry: fields}} (`Registry.unread`).
      user_modules: modules of entries that are not of this package, {("section.field", entry):
        module}; "__main__" is a notebook's cells.
    """

    options: dict[str, type]
    choosers: dict[str, str]
    fields: dict[str, Field]
    unread: dict[str, Mapping[str, frozenset[str]]]
    user_modules: dict[tuple[str, str], str]


@functools.lru_cache(maxsize=1)
def _tables_after(changes: int) -> Tables:
    """Builds the tables; cached until a registry changes, as by a user's module."""
    tables = Tables({}, {}, dict(FIELDS), {}, {})
    for chooser, registry in CHOICES.items():
        tables.unread[chooser] = registry.unread
        for name in registry:
            module = registry.module_of(name)
            if module is not None and not module.startswith("transformer_jax."):
                tables.user_modules[chooser, name] = module
            options = registry.options(name)
            if options:
                entry = f"{registry.section}.{name}"
                tables.options[entry] = options
                tables.choosers[entry] = chooser
                tables.fields.update(fields_of(entry, options))
    return tables


def tables() -> Tables:
    """The tables of what is registered now."""
    return _tables_after(number_of_changes())


tables()  # now, so that a command does not wait for them


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
        layers = layers_of(values["model.layers"])
        names = {chooser: chosen_names(chooser, values, layers) for chooser in CHOICES}
        chosen = [f"{CHOICES[field].section}.{name}" for field in names for name in names[field]]
        all_options = tables().options
        options = {entry: all_options[entry] for entry in chosen if entry in all_options}
        fields = dict(FIELDS)
        for entry, of_entry in options.items():
            fields |= fields_of(entry, of_entry)
        completed = {name: values.get(name, field.default) for name, field in fields.items()}
        return cls(completed, layers, names, options)

    def idle(self, names: Iterable[str]) -> set[str]:
        """Those of some fields that have no effect, or are options of an entry that is not
        chosen."""
        return {name for name in names if name in self.unread or name not in self.values}

    @functools.cached_property
    def unread(self) -> dict[str, str]:
        """The fields that have no effect, {"section.field": the field whose choice makes it so}."""
        unread: dict[str, str] = {}
        for chooser, fields in tables().unread.items():
            by_name = [fields[name] for name in self.names[chooser] if name in fields]
            if by_name:  # a field that one of several chosen entries reads has an effect
                unread |= dict.fromkeys(frozenset.intersection(*by_name), chooser)
        return unread


def layers_of(text: str | None) -> list[dict[str, Any]]:
    """The overrides of each layer in a pattern; ValueError if it is none."""
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
