"""What a task is: everything that depends on what the examples mean."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import jax
import numpy as np

from transformer_jax.conversations import Conversation
from transformer_jax.data.batches.token_cache import TokenCacheOptions
from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.decoding import BeamTree
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.inference.pairs import PairScore
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import Tokenizers

Params = Any
"""The parameters: a tree of arrays, as `Task.init` makes it."""

Batch = Mapping[str, jax.Array]
"""A packed batch: the arrays f, f_positions and f_segment_ids, int32 [B, T], of each feature f."""

LossSums = tuple[jax.Array, jax.Array, dict[str, jax.Array]]
"""Loss, weight and further sums, each summed over a packed batch. Among the further sums are
"tokens" (predictions, by which the reported loss is divided), "filled" and "slots"
(`metrics.padding_sums`); of "nll" and "correct", where given, perplexity and accuracy are
reported."""


class Prediction(NamedTuple):
    """An output and its score, higher is better."""

    text: str
    score: float


class Task(Protocol):
    """What training, evaluation and prediction ask of a task.

    What only some tasks can do is a protocol of its own (`tasks.interface`).
    """

    @property
    def model(self) -> Any:
        """The Flax module."""

    @property
    def tokenizers(self) -> Tokenizers:
        """One for each side; none where no text is read, as in benchmarks."""

    @property
    def lengths(self) -> Mapping[str, int]:
        """Slots of a packed row for each feature that `preprocess` yields."""

    @property
    def read(self) -> Sequence[str]:
        """The features whose tokens the model reads; throughput counts these."""

    @property
    def best_by(self) -> str:
        """The metric that chooses the best checkpoint: the higher the better, or the lower, if its
        name follows a minus sign."""

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters; under `jax.jit`."""

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The items that are packed: the examples themselves, or windows of all their text."""

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """The features of one item, an int32 array [n] each. `rng` draws what differs by epoch."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """The loss of a packed batch; without dropout where `rng` is None."""

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """What is reported of the loss's sums ("loss" among them) over all examples."""

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Metrics of the outputs, and the best output of each example; both empty where the task is
        scored by its loss alone."""

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The n best outputs of each line, in order. Warnings name a line by its number, counted
        from `first_line`, and samples depend on that number."""


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """What a training loss goes by.

    Attributes:
      label_smoothing: eps, which smoothed labels spread over the vocabulary (section 5.4).
      loss_tiles: parts of the vocabulary that the loss reads one after another; None: as
        `tiled_losses` chooses.
      z_loss: weight of the square of the logits' log-normalizer.
      r_drop: weight alpha of R-Drop, which draws dropout twice for each row; 0: it draws once.
    """

    label_smoothing: float
    loss_tiles: int | None
    r_drop: float
    z_loss: float

    @property
    def plain(self) -> Self:
        """Of the likelihood itself."""
        return dataclasses.replace(self, label_smoothing=0.0, z_loss=0.0)


@dataclasses.dataclass(frozen=True)
class TaskParts:
    """What a task is built from.

    Attributes:
      task: the section `task`.
      model: the section `model`; vocabulary sizes are not yet in it.
      model_class: what `model.architecture` names.
      data: the section `data`.
      loss: what the training loss goes by.
      metric: an entry of `scoring.METRICS`, where the task compares texts.
      vocab_sizes: pieces of each side's vocabulary.
      tokenizers: of the sides; none where no text is read.
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
    def caching(self) -> TokenCacheOptions:
        """Whether text is kept as tokens."""
        return TokenCacheOptions(self.data.cache_dir, self.data.num_workers)

    def make_model(self, *wanted: type[Any], reach: int, **vocab_sizes: int) -> Any:
        """The model, of one of the wanted classes; it is told what separates the texts of a pair.

        Args:
          *wanted: the classes of models that the task goes with.
          reach: tokens of the longest row.
          **vocab_sizes: fields of `ModelConfig`.

        Raises:
          ValueError: the config asks for another class of models, or for positions that do not
            reach so far; or the class has logits of its own that no loss would read.
        """
        if not issubclass(self.model_class, wanted):
            fitting = [name for name, one in MODELS.items() if issubclass(one, wanted)]
            raise ValueError(
                f"task {self.task.name} does not go with architecture "
                f"{self.model.architecture!r}; it asks for {' or '.join(fitting)}"
            )
        _require_one_source_of_logits(self.model_class)
        separator = self.tokenizers.specials("text").encoder.between[0]
        given: dict[str, Any] = {**vocab_sizes, "separator_id": separator}
        config = dataclasses.replace(self.model, **given)
        check_num_positions(config, reach)
        return self.model_class(config)


def _require_one_source_of_logits(model_class: type[Any]) -> None:
    """Raises ValueError where the class replaces `__call__` and leaves `unprojected`, from which
    losses make their logits."""
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
    """An entry of the registry.

    Attributes:
      build: makes the task; ValueError where its parts do not go together.
      texts: each side that has a tokenizer, and the parts of an example that it is trained on.
      labels: each side that has a vocabulary of whole labels, and what lists the labels in its part
        of an example.
      defaults: {"section.field": value} of configs of this task, in place of the dataclasses' own.
      metric: the entry of `scoring.METRICS` that compares its outputs; None: it compares no texts.
      metrics: names of all numbers that a validation records, but for those of `metric`; empty
        where they are not known beforehand.
      reads: fields of a config, "section.field", that it reads and other tasks may do without; what
        it does not read of theirs is refused where it is set. None: it reads all.
      symbols: sides with a `SymbolTokenizer`, each with the function that lists its symbols:
        (the section `task`, the side's part of all examples) -> each symbol once.
    """

    build: Callable[[TaskParts], Task]
    texts: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, Callable[[str], Iterable[str]]] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str | None = None
    metrics: tuple[str, ...] = ()
    reads: Collection[str] | None = None
    symbols: Mapping[str, Callable[[TaskConfig, Iterable[str]], Iterable[str]]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def sides(self) -> set[str]:
        """All that have a vocabulary."""
        return {*self.texts, *self.labels, *self.symbols}


# FOLDED tasks.abilities: What only some tasks can do, each a protocol of its own.


@runtime_checkable
class SupportsSearchCheck(Protocol):
    """A task whose evaluation searches for outputs."""

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Raises UserError where `Task.evaluate` would refuse to search so; searches nothing."""


@runtime_checkable
class SupportsScoring(Protocol):
    """A task that tells how likely a target is behind its source."""

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """Of each pair."""


@runtime_checkable
class SupportsPrefixes(Protocol):
    """A task whose outputs can be made to start with given text."""

    def predict_with_prefixes(
        self,
        params: Params,
        lines: Sequence[str],
        prefixes: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
    ) -> Iterator[list[Prediction]]:
        """As `Task.predict`; the outputs of a line start with its prefix."""


@runtime_checkable
class SupportsStreaming(Protocol):
    """A task that continues text."""

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn."""


@runtime_checkable
class SupportsJsonObjects(Protocol):
    """A task that takes JSON objects as examples."""

    @property
    def objects(self) -> str:
        """The forms that they have, for messages."""


@runtime_checkable
class SupportsChat(Protocol):
    """A task that answers conversations."""

    def reply(
        self, params: Params, conversation: Conversation, decode: DecodeConfig
    ) -> Iterator[str]:
        """The next answer of a conversation that ends with a question, piece by piece."""


@runtime_checkable
class SupportsInspection(Protocol):
    """A task that tells what its model reads, so that others can look inside."""

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """An example as the model reads it.

        Args:
          params: of the model.
          source: the example as `Task.predict` takes it.
          target: its output; None: what the model itself writes, where it writes a target.
          decode: how it finds that.

        Raises:
          UserError: a target is given to a task without targets.
        """


@runtime_checkable
class SupportsBeamTree(Protocol):
    """A task whose search can be followed step by step."""

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> BeamTree:
        """What the beam search for a line's outputs looked at, what it kept, and why not the rest;
        UserError where `decode` names a search without beams."""


@runtime_checkable
class DeclaresDecodeFields(Protocol):
    """A task that says which fields of the section `decode` it reads: others are refused where they
    are given for one call."""

    @property
    def predicts_by(self) -> Collection[str]:
        """Those that `predict` reads."""

    @property
    def evaluates_by(self) -> Collection[str]:
        """Those that `evaluate` reads."""
