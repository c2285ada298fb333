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
    cores: int = 0
    capability: tuple[int, int] = (0, 0)
    cache: int = 0
    integer_lanes: int = 64

    def peak(self, dtype: str) -> float:
        """FLOPs per second of products in `dtype`; dtypes that are not native are multiplied as
        float32."""
        return self.peaks.get(dtype, self.peaks["float32"])

    @property
    def integer_ops(self) -> float | None:
        """32-bit integer operations per second; None if not published (TPUs)."""
        return self.cores * self.integer_lanes * self.clock or None


_H100 = Accelerator(
    kinds=("NVIDIA H100",),
    platform="gpu",
    peaks={"bfloat16": 989e12, "float16": 989e12, "int8": 1979e12, "float32": 67e12},
    memory=80e9,
    bandwidth=3350e9,
    interconnect=450e9,
    network=50e9,
    clock=1.98e9,
    cores=132,
    capability=(9, 0),
    cache=50 << 20,
)

ACCELERATORS = {
    "b200": Accelerator(
        kinds=("NVIDIA B200",),
        platform="gpu",
        peaks={"bfloat16": 2250e12, "float16": 2250e12, "int8": 4500e12, "float32": 75e12},
        memory=180e9,
        bandwidth=7700e9,
        interconnect=900e9,
        network=50e9,
        clock=1.965e9,
        cores=148,
        capability=(10, 0),
        cache=126 << 20,
        integer_lanes=128,
    ),
    "gh200": dataclasses.replace(_H100, kinds=("NVIDIA GH200",), memory=96e9, bandwidth=4000e9),
    "h200": dataclasses.replace(_H100, kinds=("NVIDIA H200",), memory=141e9, bandwidth=4800e9),
    "h100pcie": dataclasses.replace(
        _H100,
        kinds=("NVIDIA H100 PCIe",),
        peaks={"bfloat16": 756e12, "float16": 756e12, "int8": 1513e12, "float32": 51e12},
        bandwidth=2000e9,
        interconnect=300e9,
        clock=1.755e9,
        cores=114,
    ),
    "h100": _H100,
    "a100": Accelerator(
        kinds=("NVIDIA A100",),
        platform="gpu",
        peaks={"bfloat16": 312e12, "float16": 312e12, "int8": 624e12, "float32": 19.5e12},
        memory=80e9,
        bandwidth=2039e9,
        interconnect=300e9,
        network=25e9,
        clock=1.41e9,
        cores=108,
        capability=(8, 0),
        cache=40 << 20,
    ),
    "l40s": Accelerator(
        kinds=("NVIDIA L40S",),
        platform="gpu",
        peaks={"bfloat16": 362e12, "float16": 362e12, "int8": 733e12, "float32": 91.6e12},
        memory=48e9,
        bandwidth=864e9,
        interconnect=32e9,
        network=3e9,
        clock=2.52e9,
        cores=142,
        capability=(8, 9),
        cache=96 << 20,
    ),
    "l4": Accelerator(
        kinds=("NVIDIA L4",),
        platform="gpu",
        peaks={"bfloat16": 121e12, "float16": 121e12, "int8": 242e12, "float32": 30.3e12},
        memory=24e9,
        bandwidth=300e9,
        interconnect=32e9,
        network=3e9,
        clock=2.04e9,
        cores=58,
        capability=(8, 9),
        cache=48 << 20,
    ),
    "a10": Accelerator(
        kinds=("NVIDIA A10",),
        platform="gpu",
        peaks={"bfloat16": 125e12, "float16": 125e12, "int8": 250e12, "float32": 31.2e12},
        memory=24e9,
        bandwidth=600e9,
        interconnect=32e9,
        network=3e9,
        clock=1.695e9,
        cores=72,
        capability=(8, 6),
        cache=6 << 20,
    ),
    "t4": Accelerator(
        kinds=("Tesla T4", "NVIDIA T4"),
        platform="gpu",
        peaks={"float16": 65e12, "int8": 130e12, "float32": 8.1e12},
        memory=16e9,
        bandwidth=320e9,
        interconnect=16e9,
        network=3e9,
        clock=1.59e9,
        cores=40,
        capability=(7, 5),
        cache=4 << 20,
    ),
    "v100": Accelerator(
        kinds=("Tesla V100",),
        platform="gpu",
        peaks={"float16": 125e12, "float32": 15.7e12},
        memory=32e9,
        bandwidth=900e9,
        interconnect=150e9,
        network=12.5e9,
        clock=1.53e9,
        cores=80,
        capability=(7, 0),
        cache=6 << 20,
    ),
    "v7x": Accelerator(
        kinds=("TPU7x", "TPU v7x"),
        platform="tpu",
        peaks={"bfloat16": 1153.5e12, "float32": 192.2e12},
        memory=96 << 30,
        bandwidth=3690e9,
        interconnect=300e9,
        network=6.25e9,
        clock=2.2e9,
    ),
    "v6e": Accelerator(
        kinds=("TPU v6 lite", "TPU v6e"),
        platform="tpu",
        peaks={"bfloat16": 918e12, "int8": 1836e12, "float32": 153.0e12},
        memory=32 << 30,
        bandwidth=1638e9,
        interconnect=400e9,
        network=12.5e9,
        clock=1.75e9,
    ),
    "v5e": Accelerator(
        kinds=("TPU v5 lite", "TPU v5e"),
        platform="tpu",
        peaks={"bfloat16": 197e12, "int8": 394e12, "float32": 32.8e12},
        memory=16 << 30,
        bandwidth=819e9,
        interconnect=200e9,
        network=3.125e9,
        clock=1.5e9,
    ),
    "v5p": Accelerator(
        kinds=("TPU v5p", "TPU v5"),
        platform="tpu",
        peaks={"bfloat16": 459e12, "int8": 918e12, "float32": 76.5e12},
        memory=95 << 30,
        bandwidth=2765e9,
        interconnect=600e9,
        network=6.25e9,
        clock=1.75e9,
    ),
    "v4": Accelerator(
        kinds=("TPU v4",),
        platform="tpu",
        peaks={"bfloat16": 275e12, "float32": 45.8e12},
        memory=32 << 30,
        bandwidth=1228e9,
        interconnect=300e9,
        network=6.25e9,
        clock=1.05e9,
    ),
}
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
