"""What a model attends to while it reads one example.

L layers, H heads, G heads of keys and values, T queries, S keys, K key size of a head.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.analysis.collecting import collect
from transformer_jax.analysis.pages.attention_page import attention_page
from transformer_jax.analysis.pages.document import frame
from transformer_jax.analysis.reading import Reading
from transformer_jax.errors import UserError

KINDS: Mapping[str, tuple[str, str]] = {
    "encoder": ("encoder", "encoder"),
    "decoder": ("decoder", "decoder"),
    "cross": ("decoder", "encoder"),
}
"""Kinds of attention: the stack whose tokens ask, and the stack whose tokens are attended to."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of one example in every layer and head, as the model used it.

    Attributes:
      texts: what was read and written, by its name: "source" and "target", or "text".
      tokens: each token as its vocabulary writes it, by the stack that reads it: "encoder",
        "decoder".
      values: what was collected, without the batch's axis, by place (`analysis.places`), such as
        "encoder.layer_0.self_attention.weights" [H, T, S].
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]
    values: Mapping[str, np.ndarray]

    @property
    def kinds(self) -> list[str]:
        """Those of `KINDS` that the model has."""
        return [kind for kind in KINDS if self._places(kind, "weights")]

    def weights(self, kind: str) -> Float[np.ndarray, "L H T S"]:
        """The weights of a kind: a row sums to 1, and what is masked has 0."""
        return self.of(kind, "weights")

    def of(self, kind: str, what: str) -> np.ndarray:
        """Values of all layers, [L, ...].

        Args:
          kind: of `KINDS`.
          what: "weights" [L, H, T, S] or, where they were asked for, "queries" [L, H, T, K], "keys"
            [L, G, S, K], "values" [L, G, S, V] or "heads" [L, H, T, V], the heads' outputs.

        Raises:
          KeyError: these were not collected.
        """
        places = self._places(kind, what)
        if not places:
            raise KeyError(f"no {what} of {kind} attention; there are {', '.join(self.values)}")
        return np.stack([self.values[place] for place in places])

    def _places(self, kind: str, what: str) -> list[str]:
        """Those of the layers, or that of a stack which attends once, as a recurrent decoder."""
        stack, _ = KINDS[kind]
        end = f"{'cross_attention' if kind == 'cross' else 'self_attention'}.{what}"
        places = [f"{stack}.{end}"] if f"{stack}.{end}" in self.values else []
        while (place := f"{stack}.layer_{len(places)}.{end}") in self.values:
            places.append(place)
        return places

    def stacks(self, kind: str) -> tuple[str, str]:
        """The stacks whose tokens ask and are attended to, names of `tokens`."""
        return KINDS[kind]

    def _repr_html_(self) -> str:
        """In a notebook: its page."""
        title = next(iter(self.texts.values()), "Attention")
        return frame(attention_page(self, title))


ALSO: Mapping[str, tuple[str, ...]] = {
    **{name: (f"**.{name}",) for name in ("queries", "keys", "values", "heads")},
    "stream": ("*.input", "*.layer_*"),
}
"""What may be collected besides the weights, and its places."""


def attention(model: Any, params: Any, reading: Reading, also: Collection[str] = ()) -> Attention:
    """The attention of a reading, in one pass.

    Args:
      model: takes `reading.inputs`.
      params: of the model, on the devices that compute.
      reading: the example.
      also: names of `ALSO`; "stream" is the residual stream, as its places name it.

    Raises:
      UserError: a name that is not in `ALSO`, or the model has no attention.
    """
    if unknown := sorted(set(also) - ALSO.keys()):
        raise UserError(f"attention: also has {unknown[0]!r}; it may have {', '.join(ALSO)}")
    patterns = ("**.weights", *(pattern for name in sorted(also) for pattern in ALSO[name]))
    found = Attention(reading.texts, reading.pieces, collect(model, params, reading, patterns))
    if not found.kinds:
        raise UserError("attention: no weights were found; this run's model attends to nothing")
    return found
