# SPDX-License-Identifier: Apache-2.0
"""Versions, the machine, and its ceilings: products, a copy, and the dispatch of a program."""

import importlib.metadata
import os
import time

import jax
import jax.numpy as jnp

from experiments.benchmarks.machine_limits import seconds
from experiments.devices.check import Check
from transformer_jax.runtime.platform import processor_lines

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cudnn-cu13", "nvidia-cublas", "flax", "optax"),
    *("orbax-checkpoint", "grain", "numpy", "sentencepiece", "torch", "transformers"),
)
BASE_WIDTHS = [(512, 1536), (512, 2048), (2048, 512), (512, 512)]
LOSS_WIDTHS = [(512, 9250), (512, 18_500), (512, 18_560)]  # tiles; only the last divides by 128


def run(check: Check) -> None:
    check.record("versions", **{name: version(name) for name in PACKAGES})
    device = jax.devices()[0]
    check.record("device", kind=device.device_kind, count=jax.device_count(), cudnn=cudnn())
    processor = [line.partition(":")[2].strip() for line in processor_lines() if "name" in line]
    check.record("processor", name=processor[:1], cores=os.cpu_count())
    start = time.process_time()
    sum(number * number for number in range(3_000_000))
    check.record("Python, 3 M additions", cpu_ms=1e3 * (time.process_time() - start))
    time_product(check, "bfloat16", *(3 * [256 if check.dry else 8192]))
    rows = 256 if check.dry else 24_576
    for width, result_width in [] if check.dry else BASE_WIDTHS + LOSS_WIDTHS:
        for result in ("float32", "bfloat16"):
            time_product(check, result, rows, width, result_width)
    array = jnp.ones(2**20 if check.dry else 2**31)
    copied = 2 * array.nbytes / seconds(lambda x: x + 1, array)
    check.record("copy", terabytes_per_s=copied / 1e12)
    add_one = jax.jit(lambda x: x + 1)
    x = add_one(jnp.ones(8))
    start = time.perf_counter()
    for _ in range(1000):
        x = add_one(x)
    x.block_until_ready()
    check.record("dispatch", us=1e3 * (time.perf_counter() - start))


def time_product(check: Check, result: str, rows: int, width: int, result_width: int) -> None:
    """Records the speed of a product of bfloat16 matrices."""
    x = jnp.ones((rows, width), jnp.bfloat16)
    kernel = jnp.ones((width, result_width), jnp.bfloat16)
    taken = seconds(lambda a, b: jnp.matmul(a, b, preferred_element_type=result), x, kernel)
    label = f"product {rows} x {width} x {result_width} to {result}"
    flops = 2 * rows * width * result_width
    check.record(label, ms=1e3 * taken, tflops=flops / taken / 1e12)


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cudnn() -> int | None:
    """cuDNN's version as JAX loaded it; None if there is none."""
    try:
        from jax._src.lib import cuda_versions
    except ImportError:
        return None
    return cuda_versions and cuda_versions.cudnn_get_version()
