"""Restricted self-attention (section 4) in blocks: what makes its cost r n rather than n^2.

Where a query sees less than r positions to each side, a block of r neighbouring queries needs no
keys but those of its own block, of the one before and, unless it looks back alone, of the one
behind. Rows become rows of blocks, and attention need not know.

B batch, T tokens, r size of a block, N = ceil(T / r) blocks, M = 2 r or 3 r keys of a block.
"""

import jax
import jax.numpy as jnp


def split(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    size: int,
    causal: bool,
) -> tuple[jax.Array, ...]:
    """The arguments of one self-attention, split: rows [B, T, ...] into blocks [B N, r, ...] on the
    queries' side, [B N, M, ...] on the keys', and the mask [B, 1, T, T] into [B N, 1, r, M]."""
    return (
        split_queries(query, size),
        split_keys(key, size, causal),
        split_keys(value, size, causal),
        split_mask(mask, size, causal),
        split_queries(query_positions, size),
        split_keys(key_positions, size, causal),
    )


def num_keys(size: int, causal: bool) -> int:
    """M, the keys beside a block of r queries: 2 r where they look back alone, else 3 r."""
    return (2 if causal else 3) * size


def split_queries(x: jax.Array, size: int) -> jax.Array:
    """[B, T, ...] -> [B N, r, ...]; zeros stand behind the end."""
    x = _pad(x, 0, -x.shape[1] % size)
    return x.reshape(-1, size, *x.shape[2:])


def split_keys(x: jax.Array, size: int, causal: bool) -> jax.Array:
    """[B, T, ...] -> [B N, M, ...]; zeros stand before the start and behind the end."""
    rows, length = x.shape[:2]
    num_blocks = -(-length // size)
    x = _pad(x, size, (num_blocks + 1) * size - length)
    of_row = num_blocks * size
    shifted = [x[:, i * size : i * size + of_row] for i in range(num_keys(size, causal) // size)]
    blocks = [each.reshape(rows * num_blocks, size, *x.shape[2:]) for each in shifted]
    return jnp.concatenate(blocks, axis=1)


def split_mask(mask: jax.Array, size: int, causal: bool) -> jax.Array:
    """[B, 1, T, T] -> [B N, 1, r, M]: False where nothing stands."""
    length, width = mask.shape[-1], num_keys(size, causal)
    of_block = []
    for start in range(0, length, size):
        first, end = start - size, start - size + width  # of the keys
        block = mask[:, 0, start : start + size, max(0, first) : end]
        missing = (0, size - block.shape[1]), (max(0, -first), max(0, end - length))
        of_block.append(jnp.pad(block, ((0, 0), *missing)))
    return jnp.stack(of_block, axis=1).reshape(-1, 1, size, width)


def join(x: jax.Array, length: int) -> jax.Array:
    """[B N, r, ...] -> [B, T, ...]: the inverse of `split_queries`."""
    num_blocks = -(-length // x.shape[1])
    return x.reshape(-1, num_blocks * x.shape[1], *x.shape[2:])[:, :length]


def _pad(x, before, behind):
    return jnp.pad(x, ((0, 0), (before, behind), *((0, 0),) * (x.ndim - 2)))
