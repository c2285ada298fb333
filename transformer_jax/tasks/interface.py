# SPDX-License-Identifier: Apache-2.0
"""The task protocol: everything that depends on the meaning of the examples.

`Task` has what every task needs, `ABILITIES` the methods that only some have.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from transformer_jax.data.batches.pipeline import most_workers
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import Prediction
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import LossOptions
from transformer_jax.metrics import LossSums
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.layers import looks_ahead
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import Tokenizers

Params = Any
"""Parameters of a model: a tree of arrays, as `Task.init` returns it."""

Batch = Mapping[str, jax.Array]
"""A packed batch: the arrays f, f_positions and f_segment_ids, int32 [B, T], of each feature f."""

Frozen = Mapping[str, Params]
"""Parameters that training leaves as they are, by name: "base" of adapters, "reference" (the run
that training starts from), "teacher"."""


class Supervised(NamedTuple):
    """Inputs of a model and the labels it should predict.

    Attributes:
      inputs: arguments of the model's call, by name or in order.
      labels: int32, of the shape of the logits without their last axis.
      counted: bool, False where there is nothing to predict.
    """

    inputs: Any
    labels: jax.Array
    counted: jax.Array


Evaluation = tuple[dict[str, Any], list[Prediction]]
"""Metrics of outputs, and the best output of each example."""


class Task(Protocol):
    """Protocol of a task: what training, evaluation and prediction need."""

    @property
    def model(self) -> Any:
        """The Flax module."""

    @property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers of all sides; none if no text is read, as in benchmarks."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """Slots of a packed row for each feature that `preprocess` returns."""

    @property
    def read(self) -> Sequence[str]:
        """Features whose tokens the model reads; throughput counts these."""

    @property
    def best_by(self) -> str:
        """Metric that selects the best checkpoint: the highest value, or with "-" before the name
        the lowest."""

    def init(self, rng: jax.Array) -> Params:
        """Returns initial parameters; called under `jax.jit`."""

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """Returns the items to pack into rows: the examples themselves, or windows of their text.
        Corpora with weights remain such (`data.examples.map_corpora`)."""

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """Returns the features of one item, int32 arrays [n]. `rng` is for values that differ from
        epoch to epoch: features that are made without it may be used again in later epochs."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the loss sums of a packed batch; without dropout if `rng` is None.

        `params` are those of the model, with adapters if there are any. `frozen` has the trees that
        `TaskKind.frozen` names, and in training also the base of adapters and the teacher.
        """

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns metrics from the loss's sums ("loss" among them) over all examples."""

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns metrics of the outputs, and the best output of each example; both are empty if
        the task has no metrics besides those of the loss."""

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the n best outputs of each line, in order. Lines are numbered from `first_line`:
        warnings name the number, and samples depend on it."""


ABILITIES = {
    "score": "score: this run's task does not score pairs",
    "predict_with_prefixes": (
        "prefixes: this run's task cannot start its outputs with given text; leave them out"
    ),
    "stream": "stream: this run's task does not continue text; use predict",
    "reply": "chat: this run's task answers no conversation; use predict",
    "supervised": "batches: this run's task has no labels; use its loss",
    "embed": "embed: only runs of task masked_lm make vectors of texts",
    "model_inputs": "model_inputs: this run's task does not support inspection",
    "beam_tree": "beam_tree: this run's task does not search with beams",
}
"""Methods that only some tasks have, and what is said without them:

    score(params, sources, targets, batch_size, first_line=1) -> list[PairScore]
    predict_with_prefixes(params, lines, prefixes, decode, first_line=1): like `Task.predict`; the
        outputs of each line start with its prefix
    stream(params, line, decode): yields the continuation of a line while it is generated
    reply(params, conversation, decode): yields the answer to the question that ends a conversation
    supervised(batch) -> Supervised: the model's inputs, in order, and the labels
    embed(params, lines, batch_size, first_line=1) -> float32 [N, D]
    model_inputs(params, source, target, decode) -> ModelInputs: an example as the model reads it;
        with target None and the model's own output, if the task has targets. UserError if there is
        a target and the task has none
    beam_tree(params, line, decode) -> BeamTree: the record of a beam search. UserError if `decode`
        selects another search

A task may also have `check_search(examples, decode)`, which raises UserError if `evaluate` would
reject these settings, and `predicts_by` and `evaluates_by`, the fields of the section `decode` that
`predict` and `evaluate` read: the others are rejected if they are given for one call."""


def ability(task: Task, method: str) -> Callable[..., Any]:
    """A method that only some tasks have, one of `ABILITIES`. Raises UserError without it."""
    implementation: Callable[..., Any] | None = getattr(task, method, None)
    if implementation is None:
        raise UserError(ABILITIES[method])
    return implementation


@dataclasses.dataclass(frozen=True)
class TaskParts:
    """Parts that a task is built from.

    Attributes:
      model: the section `model`, without vocabulary sizes.
      model_class: class that `model.architecture` names.
      metric: entry of `scoring.METRICS`, if the task compares texts.
      vocab_sizes: vocabulary size of each side.
    """

    task: TaskConfig
    model: ModelConfig
    model_class: type[Any]
    data: DataConfig
    loss: LossOptions
    metric: str | None
    vocab_sizes: Mapping[str, int]
    tokenizers: Tokenizers

    @property
    def caching(self) -> TokenCache:
        return TokenCache(self.data.cache_dir, most_workers(self.data.num_workers))

    def require_mask(self) -> None:
        """Raises ValueError if a tokenizer has no mask token."""
        specials = map(self.tokenizers.specials, self.tokenizers.sides)
        if any(side.mask is None for side in specials):
            raise ValueError(
                f"task {self.task.name} asks for a tokenizer with [MASK], which that of another "
                "run lacks"
            )

    def make_model(
        self, *wanted: type[Any], reach: int, sees_targets: bool = True, **vocab_sizes: Any
    ) -> Any:
        """Makes the model.

        Args:
          *wanted: model classes that the task accepts.
          reach: tokens of the longest row.
          sees_targets: whether a decoder that looks ahead would see what it should predict.

        Raises:
          ValueError: the config names another class of models, its positions do not reach
            `reach`, the class computes logits that no loss would read, or a decoder sees targets.
        """
        if not issubclass(self.model_class, wanted):
            fitting = [name for name, model in MODELS.items() if issubclass(model, wanted)]
            raise ValueError(
                f"task {self.task.name} does not go with architecture "
                f"{self.model.architecture!r}; it asks for {' or '.join(fitting)}"
            )
        _require_one_source_of_logits(self.model_class)
        is_decoder = not issubclass(self.model_class, EncoderOnly)
        if sees_targets and is_decoder and any(looks_ahead(self.model)):
            raise ValueError(
                "attention_layer 'bidirectional' sees the tokens that task "
                f"{self.task.name} predicts; take another one"
            )
        specials = self.tokenizers.specials("text")
        separator = specials.encoder.between[0]
        config = dataclasses.replace(
            self.model, **vocab_sizes, start_id=specials.start, separator_id=separator
        )
        check_num_positions(config, reach)
        return self.model_class(config)


def _require_one_source_of_logits(model_class: type[Any]) -> None:
    """Raises ValueError if the class overrides `__call__` but not `unprojected`, which losses
    compute their logits from."""
    for parent in model_class.__mro__:
        if "unprojected" in vars(parent):
            return
        if "__call__" in vars(parent):
            raise ValueError(
                f"{parent.__name__} has a `__call__` of its own, but losses read `unprojected` "
                "(docs/extending.md); override that, and `__call__` follows"
            )


@dataclasses.dataclass(frozen=True)
class TaskKind:
    """An entry of the registry of tasks.

    Attributes:
      build: makes the task; raises ValueError if its parts do not fit together.
      texts: for each side with a tokenizer, the keys of an example that the tokenizer is trained
        on.
      labels: for each side with a vocabulary of whole labels, a function that lists the labels in
        that side of an example.
      defaults: {"section.field": value}, default values of configs of this task.
      metric: default entry of `scoring.METRICS`; None: the task compares no texts.
      metrics: names of all metrics that a validation records, without those of `metric`; empty if
        they are not known beforehand.
      needs_mask: True if the tokenizer must have a mask token.
      reads: fields of a config, "section.field", that this task reads and some other task does
        not. Fields that only other tasks read are rejected if they are set. None: it reads all.
      frozen: parameter trees of other runs that the loss reads, `frozen` of `Task.loss`, all with
        this task's model: {name: the config field "section.field" that names the run}, such as an
        option of the task; or one name, of the run of `train.init_from`.
      stored: the tree among `frozen` that training does not hold, since the task reads it only
        through scores of its texts (`Preference.with_stored_scores`); None: it holds all.
      symbols: for each side written in symbols (`tokenization.SymbolTokenizer`), a function that
        lists them: (the section `task`, that side of all examples) -> each symbol once.
      more_keys: keys of an example that the task reads, besides those of its sides.
      batch_dependent: the loss of an example depends on the others of its batch, so that
        micro-batches give another one.
    """

    build: Callable[[TaskParts], Task]
    texts: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, Callable[[str], Iterable[str]]] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str | None = None
    metrics: tuple[str, ...] = ()
    needs_mask: bool = False
    reads: Collection[str] | None = None
    frozen: tuple[str, ...] | Mapping[str, str] = ()
    stored: str | None = None
    symbols: Mapping[str, Callable[[TaskConfig, Iterable[str]], Iterable[str]]] = dataclasses.field(
        default_factory=dict
    )

    more_keys: tuple[str, ...] = ()
    batch_dependent: bool = False

    @property
    def keys(self) -> set[str]:
        """Keys that each example must have."""
        texts = {keys[0] for keys in self.texts.values()}
        return {*texts, *self.labels, *self.symbols, *self.more_keys}

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the frozen trees that training holds in memory."""
        return tuple(name for name in self.frozen if name != self.stored)

    @property
    def sides(self) -> set[str]:
        """Names of all sides that have a vocabulary."""
        return {*self.texts, *self.labels, *self.symbols}


def with_model(task: Task, model: Any) -> Task:
    """The task with another model of the same kind, such as a patched one."""
    of_task: Any = task  # a dataclass, which the protocol cannot express
    return dataclasses.replace(of_task, model=model)
