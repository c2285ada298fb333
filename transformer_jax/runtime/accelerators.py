# SPDX-License-Identifier: Apache-2.0
"""Table of accelerators: peak FLOPs, memory, bandwidths and clock, as published by their makers.

All figures are for one device and for dense products (figures with sparsity are twice as high).

- NVIDIA: datasheets of T4, V100, A10, A100, L4, L40S, H100, H200, GH200 and HGX B200; numbers of
  cores, clocks and caches from the architecture whitepapers (Turing, Ampere, Ada, Hopper,
  Blackwell). 32-bit integer operations: lanes of a core (CUDA C++ Programming Guide, throughput of
  native arithmetic) x cores x boost clock.
- TPU: Google Cloud's documentation, "System architecture" of v2 to v6e and TPU7x. The clock is the
  peak divided by the operations per cycle of the matrix units (128 x 128 until v5p, then 256 x
  256). float32 products (`Precision.HIGHEST`) take six passes of bfloat16.
- Networks between hosts or slices: the makers' reference systems (DGX: one adapter per GPU; TPU: a
  chip's share of the documented bandwidth of the data center network). L4, A10 and T4 come in many
  kinds of hosts; 25 Gb/s per device is assumed.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One device, as JAX counts them: a TPU7x chip is two devices, a v4 chip is one.

    Attributes:
      kinds: possible beginnings of its `device_kind`.
      platform: JAX's platform, "gpu" or "tpu".
      peaks: FLOPs per second of products, for each dtype that it multiplies natively.
      memory: bytes.
      bandwidth: bytes per second to and from memory.
      interconnect: bytes per second that it sends within its host or slice, over all links.
      network: bytes per second that it sends to other hosts or slices.
      clock: cycles per second.
      cores: streaming multiprocessors (GPUs only, like the fields below).
      capability: CUDA compute capability.
      cache: bytes of the last-level cache.
      integer_lanes: 32-bit integer operations per core and cycle.
    """

    kinds: tuple[str, ...]
    platform: str
    peaks: Mapping[str, float]
    memory: float
    bandwidth: float
    interconnect: float
    network: float
    clock: float
    cores: int
    capability: tuple[int, int]
    cache: int
    integer_lanes: int

    def peak(self, dtype: str) -> float:
        """FLOPs per second of products in `dtype`; dtypes that are not native are multiplied as
        float32."""
        return self.peaks.get(dtype, self.peaks["float32"])

    @property
    def integer_ops(self) -> float | None:
        """32-bit integer operations per second; None if not published (TPUs)."""
        return self.cores * self.integer_lanes * self.clock or None


_DTYPES = ("bfloat16", "float16", "int8", "float32")

# Columns: beginnings of the device kind; peaks of bfloat16, float16, int8 and float32 in TFLOPs per
# second, 0 for dtypes that are not native; memory in GB (TPUs: GiB); GB per second to the memory,
# within the host or slice, and to others; clock in GHz; of GPUs cores, capability, MiB of cache.
_GPUS = {
    "b200": ("NVIDIA B200", 2250, 2250, 4500, 75, 180, 7700, 900, 50, 1.965, 148, (10, 0), 126),
    "gh200": ("NVIDIA GH200", 989, 989, 1979, 67, 96, 4000, 450, 50, 1.98, 132, (9, 0), 50),
    "h200": ("NVIDIA H200", 989, 989, 1979, 67, 141, 4800, 450, 50, 1.98, 132, (9, 0), 50),
    "h100pcie": ("NVIDIA H100 PCIe", 756, 756, 1513, 51, 80, 2000, 300, 50, 1.755, 114, (9, 0), 50),
    "h100": ("NVIDIA H100", 989, 989, 1979, 67, 80, 3350, 450, 50, 1.98, 132, (9, 0), 50),
    "a100": ("NVIDIA A100", 312, 312, 624, 19.5, 80, 2039, 300, 25, 1.41, 108, (8, 0), 40),
    "l40s": ("NVIDIA L40S", 362, 362, 733, 91.6, 48, 864, 32, 3, 2.52, 142, (8, 9), 96),
    "l4": ("NVIDIA L4", 121, 121, 242, 30.3, 24, 300, 32, 3, 2.04, 58, (8, 9), 48),
    "a10": ("NVIDIA A10", 125, 125, 250, 31.2, 24, 600, 32, 3, 1.695, 72, (8, 6), 6),
    "t4": ("Tesla T4|NVIDIA T4", 0, 65, 130, 8.1, 16, 320, 16, 3, 1.59, 40, (7, 5), 4),
    "v100": ("Tesla V100", 0, 125, 0, 15.7, 32, 900, 150, 12.5, 1.53, 80, (7, 0), 6),
}
_TPUS = {
    "v7x": ("TPU7x|TPU v7x", 1153.5, 0, 0, 192.2, 96, 3690, 300, 6.25, 2.2),
    "v6e": ("TPU v6 lite|TPU v6e", 918, 0, 1836, 153, 32, 1638, 400, 12.5, 1.75),
    "v5e": ("TPU v5 lite|TPU v5e", 197, 0, 394, 32.8, 16, 819, 200, 3.125, 1.5),
    "v5p": ("TPU v5p|TPU v5", 459, 0, 918, 76.5, 95, 2765, 600, 6.25, 1.75),
    "v4": ("TPU v4", 275, 0, 0, 45.8, 32, 1228, 300, 6.25, 1.05),
}


def _accelerator(kinds: str, *numbers: Any) -> Accelerator:
    """The accelerator of a row of `_GPUS` or `_TPUS`."""
    *peaks, memory, bandwidth, interconnect, network, clock = numbers[:9]
    flops = {dtype: float(round(1e12 * peak)) for dtype, peak in zip(_DTYPES, peaks, strict=True)}
    is_gpu = len(numbers) > 9
    cores, capability, cache = numbers[9:] if is_gpu else (0, (0, 0), 0)
    return Accelerator(
        kinds=tuple(kinds.split("|")),
        platform="gpu" if is_gpu else "tpu",
        peaks={dtype: peak for dtype, peak in flops.items() if peak},
        memory=memory * 1e9 if is_gpu else memory << 30,
        bandwidth=bandwidth * 1e9,
        interconnect=interconnect * 1e9,
        network=network * 1e9,
        clock=clock * 1e9,
        cores=cores,
        capability=capability,
        cache=cache << 20,
        integer_lanes=128 if capability >= (10, 0) else 64,
    )


ACCELERATORS = {name: _accelerator(*row) for name, row in (_GPUS | _TPUS).items()}
"""Accelerators by their common names."""


def accelerator_of(device_kind: str) -> Accelerator | None:
    """Finds the accelerator for a JAX `device_kind`, which may have more words than its entry in
    `kinds`; None if there is none."""
    best = None
    longest = 0  # "NVIDIA H100" is the beginning of "NVIDIA H100 PCIe", too
    for accelerator in ACCELERATORS.values():
        for kind in accelerator.kinds:
            if len(kind) > longest and re.match(rf"{re.escape(kind)}\b", device_kind):
                best = accelerator
                longest = len(kind)
    return best
