"""The length penalty of beam search (section 6.1): what divides log P of an output."""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Num

Lengths = Num[Array | np.ndarray, "*shape"]
Penalties = Float[Array | np.ndarray, "*shape"]


def length_penalty(length: Lengths, alpha: float) -> Penalties:
    """((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)."""
    return ((5.0 + length) / 6.0) ** alpha


def power_of_length(length: Lengths, alpha: float) -> Penalties:
    """length^alpha; with alpha 1 an output is scored by the mean log P of its tokens."""
    return (1.0 * length) ** alpha


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
    """How outputs of different lengths are compared.

    Attributes:
      of: (lengths, alpha) -> what divides log P.
      cut_compete: whether outputs that the length limit cut are compared with those that ended;
        otherwise they stand behind all of these.
    """

    of: Callable[[Lengths, float], Penalties]
    cut_compete: bool = False


LENGTH_PENALTIES = {
    "gnmt": LengthPenalty(length_penalty),
    "power": LengthPenalty(power_of_length, cut_compete=True),
}
"""What `decode.length_penalty` may name: the paper's, and that of transformers."""
