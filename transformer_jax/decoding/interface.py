"""What a search asks of a model, and what it gives back.

A search knows no model. It is handed what the model's `prefill` returned and a function that takes
one step; everything that the model remembers passes through the search unread.

Axes: B batch, K beams of a sentence, N = B * K, V vocabulary, L output length.
"""

from typing import Any, NamedTuple, Protocol

import jax

Memory = Any
"""A pytree led by B, such as the encoder's output. Once a sentence; a search never reorders it."""

State = Any
"""A pytree whose every leaf is led by B after `prefill` and by N in the search, such as a KV cache.

The N rows of a sentence are neighbours: row b * K + k is beam k of sentence b. A part that has a
method `follow(parents)` is led by B and keeps order among its beams itself: the method returns the
part for new beams, parents int32 [B, K] naming the old one that each goes on from.
"""


class Prefill(Protocol):
    """Reads the inputs and predicts the first output token."""

    def __call__(self, params: Any, inputs: Any) -> tuple[jax.Array, Memory, State]:
        """Returns logits [B, V] of the first token, the memory and the state."""


class DecodeStep(Protocol):
    """Takes the last token of every hypothesis and predicts the next. Closed over parameters, it
    takes any number of sentences; their memory and state follow as rows of what `prefill` gave."""

    def __call__(self, tokens: jax.Array, memory: Memory, state: State) -> tuple[jax.Array, State]:
        """Maps tokens int32 [N] to logits [N, V] and the next state, of unchanged shapes."""


class Hypotheses(NamedTuple):
    """The n best outputs of every sentence.

    Attributes:
        tokens: int32 [B, n, L]. Each ends in EOS, unless its length limit cut it, and is padded.
        scores: float32 [B, n], log-probability over length penalty; -inf where there is none.
    """

    tokens: jax.Array
    scores: jax.Array
