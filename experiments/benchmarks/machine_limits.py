# SPDX-License-Identifier: Apache-2.0
"""Measures what this machine can do at most: products of large matrices, and reads of memory.

    python -m experiments.benchmarks.machine_limits

Prints one JSON object: GFLOP/s of float32 and bfloat16 products with the compiler's options of the
training step, of int8 products (`nn.int8`), and GB/s of a sum over a large array. Each is the best
of many runs, because other work on the machine only slows it. A speed of docs/speed.md has its
limit from these.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.nn.int8 import Int8Matrix
from transformer_jax.runtime.platform import compiler_options

SIZE = 2048
BYTES = 1 << 30
RUNS = 12


def main() -> None:
    key = jax.random.key(0)
    square = jax.random.normal(key, (SIZE, SIZE))
    matrix = Int8Matrix.of(square)
    flops = 2 * SIZE**3
    array = jnp.ones(BYTES // 4)
    found = {
        "float32": flops / seconds(jnp.matmul, square, square) / 1e9,
        "bfloat16": flops / seconds(jnp.matmul, *[square.astype(jnp.bfloat16)] * 2) / 1e9,
        "int8": flops / seconds(lambda x, matrix: matrix.product(x), square, matrix) / 1e9,
        "memory": BYTES / seconds(jnp.sum, array) / 1e9,
    }
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of the fastest run."""
    compiled = jax.jit(function, compiler_options=compiler_options()).lower(*arguments).compile()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
