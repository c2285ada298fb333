# SPDX-License-Identifier: Apache-2.0
"""Texts with a loss mask as examples of language models, alone or in pairs of preferences.

D texts (or pairs of texts) with N tokens in total.
"""

import itertools
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.batches.windows import TokenSlices
from transformer_jax.data.examples import Features, RandomAccess

LOSS_MASK_FEATURES = ("input", "target", "counted")
"""Features of a text with a loss mask."""

CHOSEN = "chosen"
REJECTED = "rejected"
REFERENCE = "reference"
SIDES = (CHOSEN, REJECTED)
PREFERENCE_FEATURES = (
    *(f"{side}_{name}" for side in SIDES for name in LOSS_MASK_FEATURES),
    REFERENCE,
)
"""Features of a pair of a preferred and a rejected text."""


def loss_mask_features(
    tokens: Sequence[int] | np.ndarray, loss_mask: Sequence[bool] | np.ndarray
) -> Features:
    """Features of a text: "input" (all tokens except the last), "target" (all except the first) and
    "counted" (1 for each target in the loss), int32 [n - 1] each."""
    values = (tokens[:-1], tokens[1:], loss_mask[1:])
    return {
        name: np.asarray(value, np.int32)
        for name, value in zip(LOSS_MASK_FEATURES, values, strict=True)
    }


def resegmented(features: Features, resegment: Callable[[list[int]], Sequence[int]]) -> Features:
    """Features of the same text with other tokens; adjacent tokens, all in the loss or none, are
    cut together.

    Args:
      features: `loss_mask_features` of a text.
      resegment: tokens -> others of the same text.
    """
    # "input" begins one token before "target".
    first, *tokens = features["input"][:1].tolist() + features["target"].tolist()
    new_tokens = [first]
    loss_mask = [False]  # the first token is never a target
    pairs = zip(features["counted"].tolist(), tokens, strict=True)
    for in_loss, group in itertools.groupby(pairs, lambda pair: pair[0] > 0):
        others = resegment([token for _, token in group])
        new_tokens += others
        loss_mask += [in_loss] * len(others)
    return loss_mask_features(new_tokens, loss_mask)


@dataclass(frozen=True)
class LossMaskedTexts(RandomAccess[Features]):
    """Texts with loss masks; item i has the `loss_mask_features` of text i.

    Attributes:
      tokens: int32 [N].
      loss_mask: bool [N].
      starts: int64 [D + 1], start of each text, and the end of the last.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    starts: np.ndarray

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> "LossMaskedTexts":
        """Concatenates texts, given as (tokens, loss mask)."""
        tokens = array("i")
        loss_mask = array("b")
        starts = array("q", [0])
        for text_tokens, text_mask in texts:
            tokens.extend(text_tokens)
            loss_mask.extend(text_mask)
            starts.append(len(tokens))
        return cls(
            np.array(tokens, np.int32), np.array(loss_mask, bool), np.array(starts, np.int64)
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def item(self, index: int) -> Features:
        return loss_mask_features(*self.text(index))

    @property
    def slices(self) -> dict[str, TokenSlices]:
        """The features of all texts."""
        return {
            "input": TokenSlices(self.tokens, self._input_ranges),
            "target": TokenSlices(self.tokens, self._input_ranges, shift=1),
            "counted": TokenSlices(self.loss_mask, self._input_ranges, shift=1),
        }

    def _input_ranges(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.starts[indices], self.starts[indices + 1] - 1

    def text(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of a text, int32 [n], and its loss mask, bool [n]."""
        start, stop = self.starts[index : index + 2]
        return self.tokens[start:stop], self.loss_mask[start:stop]


@dataclass(frozen=True)
class PreferencePairs(RandomAccess[Features]):
    """Pairs of a chosen and a rejected text with the same beginning.

    Item i has the `loss_mask_features` of both texts, with the prefixes "chosen_" and "rejected_",
    and "reference": the bits of the pair's two reference log-probabilities, int32 [2].

    Attributes:
      chosen, rejected: D texts each.
      reference: float32 [D, 2], log-probabilities of the counted tokens of both texts under the
        reference model.
    """

    chosen: LossMaskedTexts
    rejected: LossMaskedTexts
    reference: np.ndarray

    def __len__(self) -> int:
        return len(self.reference)

    def item(self, index: int) -> Features:
        # Their bits have the type of all features.
        bits = np.asarray(self.reference[index], np.float32).view(np.int32)
        return {
            f"{side}_{name}": values
            for side in SIDES
            for name, values in getattr(self, side)[index].items()
        } | {REFERENCE: bits}
