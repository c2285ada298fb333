"""The length penalty of beam search (section 6.1)."""

import numpy as np
from jaxtyping import Array, Float, Num


def length_penalty(
    length: Num[Array | np.ndarray, "*shape"], alpha: float
) -> Float[Array | np.ndarray, "*shape"]:
    """((5 + length) / 6)^alpha: what divides log P in Wu et al. (2016), equation 14."""
    return ((5.0 + length) / 6.0) ** alpha
