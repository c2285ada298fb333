"""What only some tasks can do, each a protocol of its own."""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

from transformer_jax.analysis.reading import Reading
from transformer_jax.conversations import Conversation
from transformer_jax.data.examples import Corpus
from transformer_jax.decoding import BeamTree
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.pairs import PairScore
from transformer_jax.tasks.interface import Params, Prediction


@runtime_checkable
class ChecksSearch(Protocol):
    """A task whose evaluation searches for outputs."""

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Raises UserError where `Task.evaluate` would refuse to search so; searches nothing."""


@runtime_checkable
class ScoresPairs(Protocol):
    """A task that tells how likely a target is behind its source."""

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """Of each pair."""


@runtime_checkable
class TakesPrefixes(Protocol):
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
class Streams(Protocol):
    """A task that continues text."""

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn."""


@runtime_checkable
class ReadsObjects(Protocol):
    """A task that takes JSON objects as examples."""

    @property
    def objects(self) -> str:
        """The forms that they have, for messages."""


@runtime_checkable
class Converses(Protocol):
    """A task that answers conversations."""

    def reply(
        self, params: Params, conversation: Conversation, decode: DecodeConfig
    ) -> Iterator[str]:
        """The next answer of a conversation that ends with a question, piece by piece."""


@runtime_checkable
class ShowsReading(Protocol):
    """A task that tells what its model reads, so that others can look inside."""

    def reading(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> Reading:
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
class ShowsBeams(Protocol):
    """A task whose search can be followed step by step."""

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> BeamTree:
        """What the beam search for a line's outputs looked at, what it kept, and why not the rest;
        UserError where `decode` names a search without beams."""


@runtime_checkable
class NamesOptions(Protocol):
    """A task that says which fields of the section `decode` it reads: others are refused where they
    are given for one call."""

    @property
    def predicts_by(self) -> Collection[str]:
        """Those that `predict` reads."""

    @property
    def evaluates_by(self) -> Collection[str]:
        """Those that `evaluate` reads."""
