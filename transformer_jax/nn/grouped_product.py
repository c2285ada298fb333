# SPDX-License-Identifier: Apache-2.0
"""Products of rows with one of several matrices each, which compute little more than they need.

Rows are sorted by their matrix and padded to blocks that need one matrix each. `jax.lax.ragged_dot`
does the same on TPUs; elsewhere it multiplies each row with every matrix.

R rows, S slots of the blocks, E matrices, D inputs, F outputs.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from transformer_jax.nn.ops import einsum
from transformer_jax.runtime import platform

without_padding = jax.make_user_context(False)  # part of the key of jit's cache
"""Context: if its argument is True, programs are traced with blocks of one row, for counts of a
model's products."""

MIN_ROWS = 8
MAX_ROWS = 4096
"""Rows of a block. A block reads its matrix, and reads and writes its gradient, which takes an H100
as long as the products of 1,200 rows."""


class Groups(NamedTuple):
    """Places of R rows in blocks that have one matrix each.

    Attributes:
      slots: [R], slot of each row; S for rows without a matrix.
      rows: [S], row in each slot; R for padding.
      matrices: [S / rows of a block], matrix of each block.
      sizes: [E], slots of each matrix.
    """

    slots: Int[Array, " R"]
    rows: Int[Array, " S"]
    matrices: Int[Array, " _"]
    sizes: Int[Array, " E"]


def block_rows(num_rows: int, num_matrices: int) -> int:
    """Rows of a block: a power of two, such that padding adds at most a quarter of the rows."""
    if platform.target().platform == "tpu" or without_padding.value:
        return 1
    fitting = max(1, num_rows // (4 * num_matrices))
    return min(max(MIN_ROWS, 1 << fitting.bit_length() - 1), MAX_ROWS)


def group_rows(matrices: Int[Array, " R"], num_matrices: int, max_rows: int) -> Groups:
    """Sorts rows by their matrix, each matrix's rows from the start of a block. A number of
    `num_matrices` or more is no matrix; `max_rows` bounds the number of rows that have one."""
    num_rows = matrices.shape[0]
    max_rows = min(max_rows, num_rows)
    block = block_rows(max_rows, num_matrices)
    # Each matrix may leave its last block almost empty, but a block has at least one row.
    num_blocks = min((max_rows + num_matrices * (block - 1)) // block, max_rows)
    counts = jnp.bincount(matrices, length=num_matrices)
    blocks = -(-counts // block)
    ends = jnp.cumsum(blocks)
    num_slots = num_blocks * block
    order = jnp.argsort(matrices, stable=True).astype(jnp.int32)
    matrix = matrices[order]
    shift = (ends - blocks) * block - (jnp.cumsum(counts) - counts)  # from sorted rows to slots
    slot = jnp.arange(num_rows) + shift.at[matrix].get(mode="clip")
    slot = jnp.where(matrix < num_matrices, slot, num_slots).astype(jnp.int32)
    slots = jnp.zeros_like(order).at[order].set(slot, unique_indices=True)
    rows = jnp.full(num_slots, num_rows, jnp.int32).at[slot].set(order, mode="drop")
    block_matrices = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
    # Blocks after those in use are all padding; any matrix will do.
    return Groups(slots, rows, jnp.minimum(block_matrices, num_matrices - 1), blocks * block)


def spread_rows(x: Float[Array, "N D"], groups: Groups) -> Float[Array, "S D"]:
    """Copies rows to their slots; padding is 0. Row r is x[r // copies], with R / N copies."""
    copies = groups.slots.shape[0] // x.shape[0]
    return _take(x, groups.rows, groups.slots, copies)


def collect_rows(y: Float[Array, "S D"], groups: Groups) -> Float[Array, "R D"]:
    """Copies slots back to their rows; rows without a matrix are 0."""
    return _take(y, groups.slots, groups.rows, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _take(x: Array, index: Array, inverse: Array, copies: int) -> Array:
    """x[index // copies], 0 where the index is out of range. The gradient is gathered as well, with
    `inverse`, the inverse of `index`: a scatter would add up row by row."""
    return x.at[index // copies].get(mode="fill", fill_value=0)


def _take_forward(x: Array, index: Array, inverse: Array, copies: int) -> tuple[Array, Array]:
    return _take(x, index, inverse, copies), inverse


def _take_backward(copies: int, inverse: Array, cotangent: Array) -> tuple[Array, None, None]:
    gradient = cotangent.at[inverse].get(mode="fill", fill_value=0)
    return gradient.reshape(-1, copies, gradient.shape[-1]).sum(1), None, None


_take.defvjp(_take_forward, _take_backward)


def grouped_product(
    x: Float[Array, "S D"], kernels: Float[Array, "E D F"], groups: Groups, dtype: DTypeLike
) -> Float[Array, "S F"]:
    """Products of the rows in slots with their matrices; rounds to `dtype` as `ops.einsum`."""
    if platform.target().platform == "tpu":  # `ragged_dot` is dense elsewhere
        x = x.astype(dtype)
        kernels = kernels.astype(dtype)
        return jax.lax.ragged_dot(x, kernels, groups.sizes, preferred_element_type=jnp.float32)
    return _block_products(x, jnp.asarray(kernels), groups.matrices, dtype)


def _take_matrix(kernels: Array, matrix: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(kernels, matrix, keepdims=False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _block_products(x: Array, kernels: Array, matrices: Array, dtype: DTypeLike) -> Array:
    def multiply(_: None, block: tuple[Array, Array]) -> tuple[None, Array]:
        rows, matrix = block
        return None, einsum("nd,df->nf", rows, _take_matrix(kernels, matrix), dtype)

    kernels = kernels.astype(dtype)
    blocks = x.astype(dtype).reshape(matrices.shape[0], -1, x.shape[-1])
    _, products = jax.lax.scan(multiply, None, (blocks, matrices))
    return products.reshape(x.shape[0], -1)


def _block_products_forward(
    x: Array, kernels: Array, matrices: Array, dtype: DTypeLike
) -> tuple[Array, tuple[Array, ...]]:
    return _block_products(x, kernels, matrices, dtype), (x, kernels.astype(dtype), matrices)


def _block_products_backward(
    dtype: DTypeLike, saved: tuple[Array, ...], cotangent: Array
) -> tuple[Array, Array, None]:
    """Gradients of the rows, block by block, and of the matrices, each the sum of its blocks."""
    x, kernels, matrices = saved

    def add_block(gradients: Array, block: tuple[Array, ...]) -> tuple[Array, Array]:
        rows, cotangent, matrix = block
        row_gradients = einsum("nf,df->nd", cotangent, _take_matrix(kernels, matrix), dtype)
        total = _take_matrix(gradients, matrix) + einsum("nd,nf->df", rows, cotangent, dtype)
        return jax.lax.dynamic_update_index_in_dim(gradients, total, matrix, 0), row_gradients

    blocks = [rows.reshape(matrices.shape[0], -1, rows.shape[-1]) for rows in (x, cotangent)]
    zeros = jnp.zeros(kernels.shape, jnp.float32)
    kernel_gradients, x_gradient = jax.lax.scan(add_block, zeros, (*blocks, matrices))
    return x_gradient.reshape(x.shape).astype(x.dtype), kernel_gradients, None


_block_products.defvjp(_block_products_forward, _block_products_backward)
