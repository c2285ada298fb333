# SPDX-License-Identifier: Apache-2.0
"""Restricted self-attention (section 4) in blocks, at a cost of r n instead of n^2.

A block of r neighboring queries that see fewer than r positions in each direction needs only the
keys of its own block, of the block before and, unless attention is causal, of the block after.

B batch, T tokens, r size of a block, N = ceil(T / r) blocks, M = 2 r or 3 r keys of a block.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from transformer_jax.nn.attention_inputs import AttentionInputs


def split_into_blocks(inputs: AttentionInputs, causal: bool) -> AttentionInputs:
    """Splits self-attention with a window r into blocks of r queries and of M keys; whole rows do
    not change if they have no window, no more than M keys, or those of a cache."""
    size = inputs.window
    length = inputs.query.shape[1]
    has_cache = inputs.key.shape[1] != length
    if size is None or has_cache or keys_per_block(size, causal) >= length:
        return inputs
    assert inputs.query_positions is not None and inputs.key_positions is not None
    assert inputs.mask is not None
    return AttentionInputs(
        query=split_queries(inputs.query, size),
        key=split_keys(inputs.key, size, causal),
        value=split_keys(inputs.value, size, causal),
        mask=split_mask(inputs.mask, size, causal),
        query_positions=split_queries(inputs.query_positions, size),
        key_positions=split_keys(inputs.key_positions, size, causal),
        per_key={name: split_keys(x, size, causal) for name, x in inputs.per_key.items()},
        window=size,
    )


def join_blocks(
    heads: Float[Array, "BN r H V"], query: Float[Array, "B T H K"]
) -> Float[Array, "B T H V"]:
    """Outputs of the blocks as rows, for the queries that were split. Whole rows do not change."""
    rows, length = query.shape[:2]
    return heads.reshape(rows, -1, *heads.shape[2:])[:, :length]


def keys_per_block(size: int, causal: bool) -> int:
    """Number of keys M that a block of r queries needs: 2 r if causal, else 3 r."""
    return (2 if causal else 3) * size


def split_queries(x: Shaped[Array, "B T ..."], size: int) -> Shaped[Array, "BN r ..."]:
    """Blocks of each row; the last block is padded with zeros."""
    x = _pad(x, 0, -x.shape[1] % size)
    return x.reshape(-1, size, *x.shape[2:])


def split_keys(x: Shaped[Array, "B T ..."], size: int, causal: bool) -> Shaped[Array, "BN M ..."]:
    """Keys of each block and of its neighbors; zeros before and after the row."""
    rows, length = x.shape[:2]
    num_blocks = -(-length // size)
    x = _pad(x, size, (num_blocks + 1) * size - length)
    row_length = num_blocks * size
    num_shifts = keys_per_block(size, causal) // size
    shifted = [x[:, i * size : i * size + row_length] for i in range(num_shifts)]
    blocks = [keys.reshape(rows * num_blocks, size, *x.shape[2:]) for keys in shifted]
    return jnp.concatenate(blocks, axis=1)


def split_mask(mask: Bool[Array, "B 1 T T"], size: int, causal: bool) -> Bool[Array, "BN 1 r M"]:
    """Mask of each block; False for queries and keys outside the row."""
    length = mask.shape[-1]
    num_keys = keys_per_block(size, causal)
    blocks = []
    for start in range(0, length, size):
        first_key = start - size
        end_key = first_key + num_keys
        block = mask[:, 0, start : start + size, max(0, first_key) : end_key]
        missing = (0, size - block.shape[1]), (max(0, -first_key), max(0, end_key - length))
        blocks.append(jnp.pad(block, ((0, 0), *missing)))
    return jnp.stack(blocks, axis=1).reshape(-1, 1, size, num_keys)


def _pad(x: Array, before: int, after: int) -> Array:
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))
