# SPDX-License-Identifier: Apache-2.0
"""Interface between searches and models: prefill, decode step, memory and state.

A search knows no model. It gets the result of the model's `prefill` and a function for one decode
step; it passes the model's memory and state on unread.

Axes: B batch, J beams (or samples) of a sentence before a step, K after it, N = B * J rows,
V vocabulary, L output length.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Memory = Any
"""A pytree with leading axis B, such as the encoder's output. It is never reordered."""

State = Any
"""A pytree such as the hidden state of an RNN. Each leaf has the leading axis B after `prefill` and
N during the search; row b * K + k is beam k of sentence b. A `Reorderable` part keeps the leading
axis B."""


@runtime_checkable
class Reorderable(Protocol):
    """Part of the state with leading axis B that reorders its beams itself, such as a KV cache."""

    def reorder(self, parents: Int[Array, "B K"]) -> "Reorderable":
        """Returns the part for K new beams of each sentence; `parents` has the old beam of each."""


@runtime_checkable
class Rewindable(Protocol):
    """Part of the state that can forget its last tokens, such as a KV cache."""

    def rewind(self, counts: Int[Array, " N"]) -> "Rewindable":
        """Returns the part without the last `counts` tokens of each row; each has one beam."""


@runtime_checkable
class DecodeStep(Protocol):
    """Reads the last token of every hypothesis and predicts the next; or the last T tokens, and
    predicts the token after each.

    It is closed over the parameters and takes any number of sentences: a search may continue with
    some of them, whose memory and state are then rows of those that `prefill` returned.
    """

    def __call__(
        self, tokens: Int[Array, "N ..."], memory: Memory, state: State
    ) -> tuple[Float[Array, "N ... V"], State]:
        """Returns the logits of the next tokens, and the next state in unchanged shapes; for a
        search with `needs_hidden` also the final hidden states [N, ..., D]."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Start:
    """Inputs of a search.

    Attributes:
      logits: logits of the first token, float32 [B, V]; this, `memory` and `state` are the result
        of `prefill`.
      state: leaves with leading axis B; in calls of `decode_step` it is N.
      max_lengths: longest output of each sentence, EOS included, int32 [B], in 1..L.
      keys: a random key for each sentence, [B].
      hidden: final hidden state of the token before the first, [B, D], for a search with
        `needs_hidden`.
      before: samples so far, where an output of a language model has outgrown the context and the
        search begins again (`sampling.Samples`, whose state is that of the constraint, if any).
    """

    logits: Array
    memory: Memory
    state: State
    max_lengths: Array
    keys: Array
    hidden: Array | None = None
    before: Any = None


class Hypotheses(NamedTuple):
    """The n best outputs of every sentence.

    Attributes:
      tokens: int32 [B, n, L]. Each output ends with EOS, unless its length limit cut it, and is
        padded.
      scores: float32 [B, n], higher is better; -inf where there is no output.
      num_steps: int32 [B], decode steps of all outputs, if a draft shortened them.
    """

    tokens: Array
    scores: Array
    num_steps: Array | None = None


def truncate_at_eos(tokens: Sequence[int], eos_id: int) -> list[int]:
    """Tokens of a padded output: up to and including the first EOS."""
    tokens = list(tokens)
    return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens


@runtime_checkable
class Search(Protocol):
    """A strategy that finds the outputs of sentences.

    Implement it as a frozen dataclass of its settings: it must be hashable, because the settings
    are static arguments of compiled functions. A search whose attribute `needs_hidden` is True gets
    hidden states (`DecodeStep`, `Start`).
    """

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Finds n = `num_outputs` outputs of at most L = `max_length` tokens, under `jax.jit`."""


@runtime_checkable
class RefillableSearch(Search, Protocol):
    """A search that can pause when sentences are done, for others to take their places.

    `find` is `open`, `run` and `outputs` in turn. `open` returns a pytree; the leading axis of each
    leaf is B, or B times the rows of a sentence (`replace_sentences`).
    """

    def open(self, start: Start, *, num_outputs: int, max_length: int) -> Any:
        """Chooses the first token of each hypothesis; arguments are those of `find`."""

    def run(
        self, searched: Any, decode_step: DecodeStep, memory: Memory, most_left: Int[Array, ""]
    ) -> Any:
        """Chooses tokens until at most `most_left` sentences are not done."""

    def is_done(self, searched: Any) -> Bool[Array, " B"]:
        """Returns True for each sentence whose outputs are final."""

    def outputs(self, searched: Any) -> Hypotheses:
        """Outputs of every sentence; final for those that are done."""


def is_refillable(search: Search) -> bool:
    """Returns True for a `RefillableSearch`, unless a subclass replaces `find` alone: what it finds
    would then depend on the number of sentences."""
    owner = next(cls for cls in type(search).__mro__ if "find" in vars(cls))
    return isinstance(search, RefillableSearch) and "run" in vars(owner)


def replace_sentences(tree: Any, new: Any, places: Int[Array, " R"]) -> Any:
    """Puts R new sentences into `places` of a tree of B sentences (B: the sentence is dropped). The
    leading axis of leaves is B, or B times the rows of a sentence."""

    def replaced(old: Array, rows: Array) -> Array:
        by_sentence = rows.reshape(len(places), -1, *rows.shape[1:])
        slots = old.reshape(-1, *by_sentence.shape[1:])
        return slots.at[places].set(by_sentence, mode="drop").reshape(old.shape)

    return jax.tree.map(replaced, tree, new)


def reorder_state(state: State, parents: Int[Array, "B K"], num_parents: int) -> State:
    """State of K new beams of each sentence, copied from their parents among J."""
    batch_size, beam_size = parents.shape
    if beam_size == num_parents == 1:
        return state
    rows = (parents + num_parents * jnp.arange(batch_size)[:, None]).reshape(-1)
    return _map_state(lambda part: part.reorder(parents), lambda leaf: take_rows(leaf, rows), state)


def select_sentences(state: State, sentences: Int[Array, " B"], num_beams: int) -> State:
    """State of all beams of the chosen sentences."""
    rows = (sentences[:, None] * num_beams + jnp.arange(num_beams)).reshape(-1)
    return _map_state(
        lambda part: take_rows(part, sentences), lambda leaf: take_rows(leaf, rows), state
    )


def rewind(state: State, counts: Int[Array, " N"]) -> State:
    """State without the last `counts` tokens of each row, of one beam (see `can_rewind`)."""
    return jax.tree.map(
        lambda part: part.rewind(counts), state, is_leaf=lambda part: isinstance(part, Rewindable)
    )


def can_rewind(state: State) -> bool:
    """Returns True if every part of the state is `Rewindable`.

    A part may say so of its fields by `rewindable`, as a `nn.cache.Cache` does. Otherwise a
    dataclass that adds fields to those of the class whose `rewind` it inherits is not: that method
    does not know what the fields hold.
    """
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, Rewindable))
    return all(isinstance(part, Rewindable) and _rewinds_all(part) for part in parts)


def _rewinds_all(part: Rewindable) -> bool:
    says: bool | None = getattr(part, "rewindable", None)
    if says is not None:
        return says
    cls = type(part)
    definer = next(base for base in cls.__mro__ if "rewind" in vars(base))
    rewound = getattr(definer, "__dataclass_fields__", {})
    return getattr(cls, "__dataclass_fields__", {}).keys() == rewound.keys()


def take_rows(tree: Any, rows: Int[Array, " N"]) -> Any:
    """The chosen rows of every leaf."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _map_state(
    on_part: Callable[[Any], Any], on_leaf: Callable[[Array], Array], state: State
) -> State:
    def mapped(part: Any) -> Any:
        return on_part(part) if isinstance(part, Reorderable) else on_leaf(part)

    return jax.tree.map(mapped, state, is_leaf=lambda part: isinstance(part, Reorderable))
