"""What a search asks of a model, what it starts from, and what it returns.

A search knows no model. It is given what the model's `prefill` returned and a function that takes
one step; the model's memory and state pass through the search unread.

Axes: B batch, K beams (or samples) of a sentence, N = B * K, V vocabulary, L output length.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Memory = Any
"""A pytree led by B, such as the encoder's output: once a sentence, and never reordered."""

State = Any
"""A pytree whose every leaf is led by B after `prefill` and by N in the search, such as the hidden
state of an RNN. The N rows of a sentence are neighbours: row b * K + k is beam k of sentence b. A
part that `Reorderable` is led by B throughout."""


@runtime_checkable
class Reorderable(Protocol):
    """A part of the state that is led by B and reorders its beams itself, such as a KV cache."""

    def reorder(self, parents: Int[Array, "B K"]) -> "Reorderable":
        """The part for K new beams a sentence; `parents` names the old beam each goes on from."""


@runtime_checkable
class Prefill(Protocol):
    """Reads the inputs and predicts the first output token."""

    def __call__(self, params: Any, inputs: Any) -> tuple[Float[Array, "B V"], Memory, State]:
        """Returns the logits of the first token, the memory and the state."""


@runtime_checkable
class DecodeStep(Protocol):
    """Takes the last token of every hypothesis and predicts the next.

    Closed over the parameters. It takes any number of sentences: a search may go on with some of
    them, whose memory and state are then rows of what `prefill` returned.
    """

    def __call__(
        self, tokens: Int[Array, " N"], memory: Memory, state: State
    ) -> tuple[Float[Array, "N V"], State]:
        """Returns the logits of the next token and the next state, of unchanged shapes."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Start:
    """Where a search starts.

    Attributes:
      logits: float32 [B, V], of the first token; this, `memory` and `state` are what `prefill`
        returned.
      memory: leaves led by B.
      state: leaves led by B; `decode_step` sees them led by N.
      max_lengths: int32 [B], the longest output of each sentence, EOS included, in 1..L.
      keys: [B], a random key for each sentence.
    """

    logits: Array
    memory: Memory
    state: State
    max_lengths: Array
    keys: Array


class Hypotheses(NamedTuple):
    """The n best outputs of every sentence.

    Attributes:
      tokens: int32 [B, n, L]. Each ends in EOS, unless its length limit cut it, and is padded.
      scores: float32 [B, n], higher is better; -inf where there is no output.
    """

    tokens: Array
    scores: Array


def truncate_at_eos(tokens: Sequence[int], eos_id: int) -> list[int]:
    """The tokens of an output as a search returns it: those up to the first `eos_id`, with it."""
    tokens = list(tokens)
    return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens


@runtime_checkable
class Search(Protocol):
    """A strategy that finds the outputs of sentences.

    Implement it as a small frozen dataclass of its settings: hashable, as they are compiled in.
    """

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Finds n = `num_outputs` outputs of at most L = `max_length` tokens, under `jax.jit`."""


# FOLDED decoding.state: Reorders decoding state: each surviving beam takes its parent's. B
# sentences, J beams of a sentence before and K after, N = B J rows.


def of_parents(state: State, parents: Int[Array, "B K"], num_parents: int) -> State:
    """The state of new beams, each taken from its parent, one of `num_parents`, J."""
    batch_size, beam_size = parents.shape
    if beam_size == num_parents == 1:
        return state
    rows = (parents + num_parents * jnp.arange(batch_size)[:, None]).reshape(-1)
    return _map(lambda part: part.reorder(parents), lambda leaf: of_rows(leaf, rows), state)


def of_sentences(state: State, sentences: Int[Array, " B"], num_beams: int) -> State:
    """The state of all beams of the chosen sentences."""
    rows = (sentences[:, None] * num_beams + jnp.arange(num_beams)).reshape(-1)
    return _map(lambda part: of_rows(part, sentences), lambda leaf: of_rows(leaf, rows), state)


def of_rows(tree: Any, rows: Int[Array, " N"]) -> Any:
    """The chosen rows of every leaf."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), tree)


def _map(of_part: Callable[[Any], Any], of_leaf: Callable[[Array], Array], state: State) -> State:
    """Maps parts that keep the order of their beams, led by B, and all other leaves, led by N."""

    def keeps_order(part: Any) -> bool:
        return isinstance(part, Reorderable)

    def mapped(part: Any) -> Any:
        return of_part(part) if keeps_order(part) else of_leaf(part)

    return jax.tree.map(mapped, state, is_leaf=keeps_order)
