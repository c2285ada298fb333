# SPDX-License-Identifier: Apache-2.0
"""The sinusoids of position pos + k are a linear function of those of pos (section 3.5).

    transformer_jax claim sinusoids_shift_linearly --workdir=runs/claims/sinusoids_shift_linearly

The matrix depends on k only: it rotates each pair of a sine and a cosine by k / 10000^(2i / D).
Positions 0 to 511, one drawn k below 512 for each seed. The bound allows for angles in float32,
which are off by up to 1e-4 at position 1,000.
"""

import numpy as np

from transformer_jax.nn.positions.absolute import sinusoids

WIDTH, POSITIONS, BOUND = 512, np.arange(512), 1e-3


def rotation(k):
    """Matrix M_k [D, D] of the shift by k."""
    matrix = np.zeros((WIDTH, WIDTH))
    for i in range(0, WIDTH, 2):
        cos, sin = (f(k / 10_000 ** (i / WIDTH)) for f in (np.cos, np.sin))
        matrix[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return matrix


def experiment(seed):
    """Largest deviation of PE(pos + k) from M_k PE(pos), and its bound."""
    k = int(np.random.default_rng(seed).integers(1, 512))
    shifted, linear = sinusoids(POSITIONS + k, WIDTH), sinusoids(POSITIONS, WIDTH) @ rotation(k).T
    return float(abs(shifted - linear).max()), BOUND


def get_claim():
    return dict(
        statement="The sinusoids of pos + k are a linear function of the sinusoids of pos.",
        rows={"deviation": {}, "bound": {}},
        experiment=experiment,
        metric="largest deviation",
        source="Vaswani et al. 2017, section 3.5",
    )
