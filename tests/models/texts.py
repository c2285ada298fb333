# SPDX-License-Identifier: Apache-2.0
"""Two texts as tokens, positions and segment ids: one in each row, both packed into one row, and
these three rows in one batch; and a small model for their vocabulary."""

import numpy as np

from transformer_jax.nn.config import TransformerConfig

PADDED = (
    np.array([[3, 4, 5, 6, 9], [7, 8, 10, 0, 0]]),
    np.tile(np.arange(5), (2, 1)),
    np.array([[1] * 5, [1, 1, 1, 0, 0]]),
)
PACKED = (
    np.array([[3, 4, 5, 6, 9, 7, 8, 10, 0]]),
    np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
    np.array([[1] * 5 + [2] * 3 + [0]]),
)
TOGETHER = tuple(
    np.concatenate([packed, np.pad(padded, ((0, 0), (0, 4)))])
    for packed, padded in zip(PACKED, PADDED, strict=True)
)


LAYERS = ("num_layers", "num_encoder_layers", "num_decoder_layers")
VOCABULARIES = ("vocab_size", "source_vocab_size", "target_vocab_size")


def small_config(depth=1, **changes):
    """A Transformer of any architecture for the vocabulary of these texts."""
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 4, "max_length": 8, "dtype": "float32"}
    sizes |= dict.fromkeys(LAYERS, depth) | dict.fromkeys(VOCABULARIES, 11)
    return TransformerConfig(**sizes | changes)
