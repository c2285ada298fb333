# SPDX-License-Identifier: Apache-2.0
"""A measurement of the processor: are products of bfloat16 faster than those of float32?

Instructions for bfloat16 do not settle it: how fast they are differs between processors, and a
hypervisor may hide others that oneDNN needs. So a processor that has them computes the three
products of a layer in both dtypes once, in 0.2 s, and the times are kept in the user's cache.
"""

import functools
import hashlib
import math
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from transformer_jax.runtime.remake import kept_json

ONEDNN: dict[str, bool | int | str] = {"xla_cpu_experimental_onednn_custom_call": True}
"""Option of XLA that computes products by oneDNN."""

_CPUINFO = Path("/proc/cpuinfo")
_DTYPES = ("float32", "bfloat16")
_ROWS = 256
_WIDTH = 512
_ROUNDS = 5
# Tests compile with other flags; what is measured is the processor.
_OPTIMIZED: dict[str, bool | int | str] = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_disable_hlo_passes": "",
}


def multiplies_bfloat16() -> bool:
    """Returns True if products are faster in bfloat16, by oneDNN, than in float32.

    False if ONEDNN_MAX_CPU_ISA is set: oneDNN ends the process where that forbids instructions.
    """
    lines = processor_lines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    if flags.isdisjoint(("amx_bf16", "avx512_bf16")) or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    seconds = _kept_seconds((jaxlib.__version__, *lines))
    return seconds["bfloat16"] < seconds["float32"]


@functools.cache
def processor_lines() -> tuple[str, ...]:
    """Model name and flags of the processor; empty where the system does not list them."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ()
    return tuple(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


@functools.cache
def _kept_seconds(lines: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds of the products in each dtype on the processor that `lines` describe: those of
    the user's cache, or measured now."""
    key = repr(lines)
    seconds: dict[str, float] = kept_json(
        f"processors/{hashlib.sha256(key.encode()).hexdigest()[:32]}",
        key,
        lambda: {dtype: _seconds_of_products(dtype) for dtype in _DTYPES},
    )
    return seconds


def _seconds_of_products(dtype: str) -> float:
    """CPU seconds of y = x w and of the gradients of x and w, the best of a few times; infinite if
    jaxlib cannot compile them.

    Other programs on the machine lengthen CPU time less than wall time.
    """
    options = _OPTIMIZED | (ONEDNN if dtype == "bfloat16" else {})

    @functools.partial(jax.jit, compiler_options=options)
    def products(x: jax.Array, w: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        return jnp.dot(x, w), jnp.dot(dy, w.T), jnp.dot(x.T, dy)

    shapes = (_ROWS, _WIDTH), (_WIDTH, _WIDTH), (_ROWS, _WIDTH)
    arrays = [np.ones(shape, dtype) for shape in shapes]
    try:
        run = products.lower(*arrays).compile()
    except jax.errors.JaxRuntimeError:  # it does not know an option
        return math.inf
    seconds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        jax.block_until_ready(run(*arrays))
        seconds.append(time.process_time() - start)
    return min(seconds)
