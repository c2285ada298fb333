"""One layer's attention, as the steps of a walk speak of it, and its formulas in NumPy.

H heads, G heads of keys and values, T queries, S keys, K key size of a head.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.analysis.walk.seen import Seen
from transformer_jax.analysis.walk.step import Axis
from transformer_jax.nn.config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Attending:
    """One layer's attention of one kind.

    Attributes:
      seen: the example.
      path: of the module.
      stack, source: whose tokens ask, and whose are attended to.
      group: of its steps.
      config: of the layer.
    """

    seen: Seen
    path: str
    stack: str
    source: str
    group: tuple[str, ...]
    config: TransformerConfig

    def place(self, name: str) -> str:
        """Of a value of this attention."""
        return f"{self.path}.{name}"

    def value(self, name: str) -> np.ndarray:
        """One that the model computed."""
        return self.seen.values[self.place(name)]

    @property
    def is_cross(self) -> bool:
        """Whether a decoder attends to an encoder."""
        return self.stack != self.source

    @property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """Of products and weights."""
        seen = self.seen
        return Axis("head"), seen.tokens(self.stack, "query"), seen.tokens(self.source, "key")

    @property
    def example(self) -> tuple[int, int]:
        """A query, and the key that takes most of its attention in the first head."""
        query = self.seen.example(self.stack)
        return query, int(self.value("weights")[0, query].argmax())

    @property
    def shown(self) -> tuple[int, int, int]:
        """The same with the head, as an index of products and weights."""
        return 0, *self.example

    def asks(self) -> str:
        """The query of the example, for sentences."""
        return self.seen.token(self.stack, self.example[0])

    def asked(self) -> str:
        """Its key."""
        return self.seen.token(self.source, self.example[1])

    def visible(self) -> Bool[np.ndarray, "T S"]:
        """True where a query sees a key."""
        tokens, window = self.seen.reading.tokens, self.config.attention_window
        queries, keys = (np.arange(len(tokens[stack])) for stack in (self.stack, self.source))
        distance = keys - queries[:, None]
        seen = np.ones(distance.shape, bool)
        if not self.is_cross and self.stack == "decoder":
            seen &= distance <= 0
        if not self.is_cross and window is not None:
            seen &= np.abs(distance) < window
        return seen


def head_products(
    queries: Float[np.ndarray, "H T K"], keys: Float[np.ndarray, "G S K"]
) -> Float[np.ndarray, "H T S"]:
    """Q K^T of each head, float64; heads that are neighbors may share their keys."""
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    return np.einsum("htk,hsk->hts", queries, keys, dtype=np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
