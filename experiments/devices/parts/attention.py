# SPDX-License-Identifier: Apache-2.0
"""Fused attention against the plain function in float32: outputs, gradients and speed."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.machine_limits import seconds
from experiments.devices.check import Check
from experiments.devices.steps import packed_batch
from transformer_jax.nn.attention import scaled_dot_product_attention
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.fused_attention import AttentionRequirements, CuDNN, choose_kernel
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.per_device import use_sharded_call
from transformer_jax.parallel.engines import call_whole

Attend = Callable[[AttentionInputs], jax.Array]


class Shape(NamedTuple):
    rows: int
    queries: int
    keys: int
    heads: int
    head_size: int = 64
    key_heads: int | None = None  # None: as many as `heads`
    causal: bool = False


SHAPES = {
    "self": Shape(8, 256, 256, 8),
    "causal": Shape(8, 256, 256, 8, causal=True),
    "cross": Shape(8, 128, 256, 8),
    "causal, 1024": Shape(4, 1024, 1024, 12, causal=True),
    "grouped heads of 128": Shape(4, 512, 512, 8, 128, 2, causal=True),
    "64 keys": Shape(16, 64, 64, 4),
    "64 keys, causal": Shape(16, 64, 64, 4, causal=True),
    "192 keys": Shape(8, 192, 192, 4),
    "32 keys": Shape(16, 32, 32, 4, causal=True),
    "96 keys": Shape(16, 96, 96, 4, causal=True),
    "160 keys": Shape(8, 160, 160, 4),
    "16 keys": Shape(16, 16, 16, 4),
}
BASE_SHAPE = Shape(96, 256, 256, 8)
LARGEST_ERROR = 2e-2  # relative; bfloat16 has eight bits
BFLOAT16 = AttentionRequirements(dtype=jnp.bfloat16)


def run(check: Check) -> None:
    kernel = CuDNN("xla" if check.dry else "cudnn")
    fused = functools.partial(kernel, requirements=BFLOAT16)
    shapes = {shape: name for name, shape in SHAPES.items()}
    if check.dry:  # only a few differ
        shapes = {shrink(shape): name for name, shape in SHAPES.items()}
    for shape, name in shapes.items():
        inputs, cotangent = draw(shape)
        with use_sharded_call(call_whole):
            choice = choose_kernel("auto", inputs, BFLOAT16)
        compare(check, name, fused, inputs, cotangent, str(choice))
    for causal in (False, True):
        time_attention(check, kernel, BASE_SHAPE._replace(causal=causal))


def shrink(shape: Shape) -> Shape:
    """The shape with at most 2 rows of 64 tokens, whose remainder is that of 64, 192, ... keys."""
    return shape._replace(
        rows=2,
        queries=min(shape.queries, 64),
        keys=min(shape.keys, 64),
        heads=2,
        key_heads=shape.key_heads and 1,
    )


def draw(shape: Shape) -> tuple[AttentionInputs, jax.Array]:
    """Draws queries, keys and values of packed rows with padding, and a cotangent; all can be
    written in bfloat16."""
    lengths = {"query": shape.queries, "key": shape.keys}
    batch = packed_batch(lengths, shape.rows, 100, padding=0.2)
    segments = Segments(batch["query_segment_ids"], batch["key_segment_ids"], shape.causal)
    rng = np.random.default_rng(0)

    def heads(length: int, number: int) -> jax.Array:
        values = rng.normal(size=(shape.rows, length, number, shape.head_size))
        return jnp.asarray(values, jnp.bfloat16).astype(jnp.float32)

    key_heads = shape.key_heads or shape.heads
    inputs = AttentionInputs(
        heads(shape.queries, shape.heads),
        heads(shape.keys, key_heads),
        heads(shape.keys, key_heads),
        segments.mask(),
        segments=segments,
    )
    return inputs, heads(shape.queries, shape.heads)


def plain(inputs: AttentionInputs) -> jax.Array:
    with jax.default_matmul_precision("highest"):
        heads = (inputs.query, inputs.key, inputs.value)
        return scaled_dot_product_attention(*heads, inputs.windowed_mask)


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(
    attend: Attend, inputs: AttentionInputs, cotangent: jax.Array
) -> tuple[jax.Array, ...]:
    is_token = (inputs.segments.query > 0)[:, :, None, None]

    def attend_heads(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        with use_sharded_call(call_whole):
            outputs = attend(inputs.replace(query=query, key=key, value=value))
        return outputs * is_token.astype(outputs.dtype)  # padding counts only if it is not finite

    outputs, pull_back = jax.vjp(attend_heads, inputs.query, inputs.key, inputs.value)
    return outputs, *pull_back(cotangent.astype(outputs.dtype))


def compare(
    check: Check,
    label: str,
    attend: Attend,
    inputs: AttentionInputs,
    cotangent: jax.Array,
    choice: str,
) -> None:
    """Records relative errors of outputs and gradients against the plain function. A kernel that
    training does not choose may be wrong."""
    with check.attempt(label):
        arrays = outputs_and_gradients(attend, inputs, cotangent)
        exact = outputs_and_gradients(plain, inputs, cotangent)
        errors = [
            float(jnp.linalg.norm(array.astype(jnp.float32) - other) / jnp.linalg.norm(other))
            for array, other in zip(arrays, exact, strict=True)
        ]
        agrees = all(error < LARGEST_ERROR for error in errors)  # False for NaN
        is_used = "not cudnn" not in choice
        verdict = {"ok": agrees} if is_used else {"agrees": agrees}
        rounded = [round(error, 5) for error in errors]
        check.record(label, **verdict, chosen=choice, errors=rounded)


def time_attention(check: Check, kernel: CuDNN, shape: Shape) -> None:
    """Records the milliseconds of one attention, forward and backward; base has 18 in a step."""
    inputs, cotangent = draw(shrink(shape) if check.dry else shape)
    inputs, cotangent = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, (inputs, cotangent)
    )
    attend = functools.partial(
        jax.nn.dot_product_attention, is_causal=shape.causal, implementation=kernel.implementation
    )
    forms = {
        "cuDNN, mask as a bias": lambda x: attend(x.query, x.key, x.value, mask=x.windowed_mask),
        "cuDNN without a mask": lambda x: attend(x.query, x.key, x.value),
        "plain": lambda x: scaled_dot_product_attention(
            x.query, x.key, x.value, x.windowed_mask, dtype=jnp.bfloat16
        ),
    }
    for name, form in forms.items():
        label = f"time of {name}{', causal' if shape.causal else ''}"
        with check.attempt(label):
            step = functools.partial(outputs_and_gradients, form)
            check.record(label, ms=1e3 * seconds(step, inputs, cotangent))
