"""Restricted self-attention (section 4) in blocks: what makes its cost r n rather than n^2.

Where a query sees less than r positions in each direction, a block of r neighboring queries needs
only the keys of its own block, of the block before and, unless it only looks back, of the block
after. Rows become rows of blocks; attention itself does not change.

B batch, T tokens, r size of a block, N = ceil(T / r) blocks, M = 2 r or 3 r keys of a block.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from transformer_jax.nn.attention_inputs import AttentionInputs


def split(inputs: AttentionInputs, size: int, causal: bool) -> AttentionInputs:
    """One self-attention in blocks: rows [B, T, ...] become blocks [B N, r, ...] of queries and
    [B N, M, ...] of keys, the mask [B, 1, T, T] becomes [B N, 1, r, M].

    The outputs of a row's blocks stand one after the other; the last block may be longer than the
    row.
    """
    assert inputs.query_positions is not None and inputs.key_positions is not None
    return AttentionInputs(
        query=split_queries(inputs.query, size),
        key=split_keys(inputs.key, size, causal),
        value=split_keys(inputs.value, size, causal),
        mask=split_mask(inputs.mask, size, causal),
        query_positions=split_queries(inputs.query_positions, size),
        key_positions=split_keys(inputs.key_positions, size, causal),
    )


def num_keys(size: int, causal: bool) -> int:
    """M, the keys that a block of r queries needs: 2 r where they only look back, else 3 r."""
    return (2 if causal else 3) * size


def split_queries(x: Shaped[Array, "B T ..."], size: int) -> Shaped[Array, "BN r ..."]:
    """Rows in blocks, zeros after the end."""
    x = _pad(x, 0, -x.shape[1] % size)
    return x.reshape(-1, size, *x.shape[2:])


def split_keys(x: Shaped[Array, "B T ..."], size: int, causal: bool) -> Shaped[Array, "BN M ..."]:
    """What each block sees, zeros before the start and after the end."""
    rows, length = x.shape[:2]
    num_blocks = -(-length // size)
    x = _pad(x, size, (num_blocks + 1) * size - length)
    of_row = num_blocks * size
    shifted = [x[:, i * size : i * size + of_row] for i in range(num_keys(size, causal) // size)]
    blocks = [each.reshape(rows * num_blocks, size, *x.shape[2:]) for each in shifted]
    return jnp.concatenate(blocks, axis=1)


def split_mask(mask: Bool[Array, "B 1 T T"], size: int, causal: bool) -> Bool[Array, "BN 1 r M"]:
    """The mask of each block: False where nothing stands."""
    length, width = mask.shape[-1], num_keys(size, causal)
    of_block = []
    for start in range(0, length, size):
        first, end = start - size, start - size + width  # of the keys
        block = mask[:, 0, start : start + size, max(0, first) : end]
        missing = (0, size - block.shape[1]), (max(0, -first), max(0, end - length))
        of_block.append(jnp.pad(block, ((0, 0), *missing)))
    return jnp.stack(of_block, axis=1).reshape(-1, 1, size, width)


def _pad(x: Array, before: int, after: int) -> Array:
    return jnp.pad(x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))
