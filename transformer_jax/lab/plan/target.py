# SPDX-License-Identifier: Apache-2.0
"""Devices to compile for that are not here, as `--device` names them."""

import dataclasses
import importlib
import importlib.util
import math
import re
from typing import Any

import jax
from jax.experimental import topologies

from transformer_jax.errors import UserError, install_hint, reason_of
from transformer_jax.runtime.accelerators import ACCELERATORS, Accelerator
from transformer_jax.suggestions import suggest

GIB = 2**30
MAX_GPUS_PER_HOST = 8
MAX_DEVICES = 16_384

_MAX_CHIPS = {"v4": 4096, "v5p": 8960, "v7x": 9216}
_SLICES_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL_SLICES_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_TPUS_2D = ("v5e", "v6e")

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment of a process that compiles for absent devices: JAX itself runs on the CPU, and the
libraries of the manufacturers look for no hardware."""

_LIMITS = {  # threads and bytes of shared memory of a core, bytes that a block may use
    (7, 0): (2048, 98304, 98304),
    (7, 5): (1024, 65536, 65536),
    (8, 0): (2048, 167936, 166912),
    (8, 6): (1536, 102400, 101376),
    (8, 9): (1536, 102400, 101376),
    (9, 0): (2048, 233472, 232448),
    (10, 0): (2048, 233472, 232448),
}
"""By compute capability (CUDA C++ Programming Guide, "Technical specifications")."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for.

    Attributes:
      name: kind of device, a key of `ACCELERATORS`.
      shape: GPUs: hosts, and GPUs of a host. TPUs: chips of a slice along each axis.
      slices: number of such slices of TPUs.
    """

    name: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def accelerator(self) -> Accelerator:
        """Specification of one device."""
        return ACCELERATORS[self.name]

    def __str__(self) -> str:
        slices = f" x {self.slices} slices" if self.slices > 1 else ""
        return f"{self.name}:{'x'.join(map(str, self.shape))}{slices}"

    def devices(self) -> list[jax.Device]:
        """Abstract devices, for which JAX may lower cuDNN's attention from then on; this process
        must have been started in `ENVIRONMENT`.

        Raises:
          UserError: the compiler does not know such devices.
        """
        shape = "x".join(map(str, self.shape))
        more: dict[str, Any] = {}
        if self.accelerator.platform == "tpu":
            platform = "tpu"
            name = f"{'tpu7x' if self.name == 'v7x' else self.name}:{shape}"
            if math.prod(self.shape) == 1:
                more["chips_per_host_bounds"] = (1, 1, 1)
            if self.slices > 1:
                more["num_slices"] = self.slices
            if self.name == "v4":
                more["chip_config_name"] = "megacore"  # one device a chip, as in JAX
        else:
            platform = "cuda"
            name = ""
            more = {"topology": f"1x{shape}", "target_config": _gpu_target_config(self.accelerator)}
            _allow_cudnn_lowering(self.accelerator.capability)
        try:
            return list(topologies.get_topology_desc(name, platform, **more).devices)
        except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError) as error:
            raise UserError(
                f"--device={self}: the compiler rejects it: {reason_of(error)}"
            ) from error


def _allow_cudnn_lowering(capability: tuple[int, int]) -> None:
    """Lets JAX lower cuDNN's attention for a GPU that is absent; JAX checks the local GPUs."""

    def version(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    checks: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    checks.check_compute_capability = lambda least: capability >= version(least)
    checks.is_cuda_compute_capability_equal = lambda other: capability == version(other)


def parse_target(text: str, slices: int = 1) -> Target:
    """Parses `--device` and `--slices`.

    Raises:
      UserError: an unknown device (the message names the nearest), or an impossible topology.
    """
    name, _, size = text.strip().lower().partition(":")
    if name not in ACCELERATORS:
        raise UserError(
            f"--device={text}: no device is called {name!r}{suggest(name, ACCELERATORS)}; known: "
            f"{', '.join(ACCELERATORS)}"
        )
    is_gpu = ACCELERATORS[name].platform == "gpu"
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", size):
        tpus = "4x4" if name in _TPUS_2D else "4x4x8"
        example = "8, or HOSTSxGPUS such as 4x8" if is_gpu else tpus
        raise UserError(f"--device={text}: give the number of devices, as {name}:{example}")
    shape = tuple(map(int, size.split("x")))
    if is_gpu:
        if slices > 1:
            hosts = f"{name}:{slices}x{shape[-1]}"
            raise UserError(f"--slices is for TPUs; for GPUs write hosts: {hosts}")
        if len(shape) > 2 or shape[-1] > MAX_GPUS_PER_HOST or math.prod(shape) > MAX_DEVICES:
            raise UserError(
                f"--device={text}: GPUs are {name}:GPUS or {name}:HOSTSxGPUS, with at most "
                f"{MAX_GPUS_PER_HOST} GPUs a host and {MAX_DEVICES} in all"
            )
        return Target(name, shape if len(shape) == 2 else (1, *shape))
    reason = _slice_error(name, shape)
    if reason:
        raise UserError(f"--device={text}: there is no such slice of {name}: {reason}")
    if math.prod(shape) * slices > MAX_DEVICES:
        raise UserError(f"--slices={slices}: at most {MAX_DEVICES} chips can be planned for")
    return Target(name, shape, slices)


def require_compiler(target: Target) -> None:
    """Raises UserError, with the command that installs it, if the target's compiler is missing."""
    if target.accelerator.platform == "gpu":
        libraries = ["jax_cuda13_plugin", "nvidia", "nvidia.cudnn"]
        extra = "plan-gpu"
    else:
        libraries = ["libtpu"]
        extra = "plan-tpu"
    if any(importlib.util.find_spec(library) is None for library in libraries):
        raise UserError(
            f"plan: the compiler for {target.name} is not installed: {install_hint(extra)}"
        )


def _slice_error(name: str, shape: tuple[int, ...]) -> str | None:
    """Reason why there is no such slice; None if there is."""
    if name in _TPUS_2D:
        flat = "x".join(map(str, shape))
        return None if flat in _SLICES_2D else f"its slices are {', '.join(_SLICES_2D)}"
    if "x".join(map(str, shape)) in _SMALL_SLICES_3D:
        return None
    in_cubes = len(shape) == 3 and all(size % 4 == 0 for size in shape)  # racks of 4x4x4 chips
    if in_cubes and list(shape) == sorted(shape) and math.prod(shape) <= _MAX_CHIPS[name]:
        return None
    return (
        f"its slices are {', '.join(_SMALL_SLICES_3D)}, or AxBxC in multiples of 4 with "
        f"A <= B <= C, such as 4x4x8, and at most {_MAX_CHIPS[name]} chips"
    )


def _gpu_target_config(gpu: Accelerator) -> str:
    """Description of a GPU for XLA: the text of a `GpuTargetConfigProto`."""
    threads, shared, block_shared = _LIMITS[gpu.capability]
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {block_shared}
  threads_per_core_limit: {threads}
  core_count: {gpu.cores}
  fpus_per_core: {64 if gpu.capability in ((7, 0), (7, 5), (8, 0)) else 128}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {round(gpu.bandwidth)}
  l2_cache_size: {gpu.cache}
  clock_rate_ghz: {gpu.clock / 1e9}
  device_memory_size: {round(gpu.memory)}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 }}
device_description_str: "{gpu.kinds[0]}"
"""


def usable_bytes(accelerator: Accelerator) -> float:
    """Bytes that a program may use: JAX's default share of a GPU's memory, libtpu's of a TPU's."""
    # Default of XLA_PYTHON_CLIENT_MEM_FRACTION; 15.75 of a v5e's 16 GiB.
    return accelerator.memory * (0.75 if accelerator.platform == "gpu" else 0.98)
