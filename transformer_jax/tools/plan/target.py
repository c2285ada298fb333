"""Devices that programs are compiled for without being here, as `--device` names them."""

import dataclasses
import difflib
import importlib
import importlib.util
import math
import re
from typing import Any

import jax
from jax.experimental import topologies

from transformer_jax.errors import UserError
from transformer_jax.runtime.accelerators import ACCELERATORS, Accelerator

MOST_GPUS = 8  # of a host; those of a rack that are joined like one host would be more
MOST_DEVICES = 16_384

_MOST_CHIPS = {"v4": 4096, "v5e": 256, "v5p": 8960, "v6e": 256, "v7x": 9216}
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_SMALL = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_FLAT_TPUS = ("v5e", "v6e")

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
"""What a process needs that compiles for devices that are not there: JAX itself runs on the CPU,
and the makers' libraries look for no hardware."""

_LIMITS = {  # threads and shared memory of a core (bytes), and what a block may use of it
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
      name: of the kind, as in `ACCELERATORS`.
      shape: of GPUs, hosts and GPUs of a host; of TPUs, the chips of a slice along each axis.
      slices: of TPUs, how many such slices.
    """

    name: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def accelerator(self) -> Accelerator:
        """What one device can do."""
        return ACCELERATORS[self.name]

    def __str__(self) -> str:
        slices = f" x {self.slices} slices" if self.slices > 1 else ""
        return f"{self.name}:{'x'.join(map(str, self.shape))}{slices}"

    def devices(self) -> list[jax.Device]:
        """The devices; this process must have started in `ENVIRONMENT`.

        Raises:
          UserError: the compiler knows no such devices.
        """
        shape = "x".join(map(str, self.shape))
        more: dict[str, Any] = {}
        if self.accelerator.platform == "tpu":
            platform, kind = "tpu", "tpu7x" if self.name == "v7x" else self.name
            name = f"{kind}:{shape}"
            if math.prod(self.shape) == 1:
                more["chips_per_host_bounds"] = (1, 1, 1)
            if self.slices > 1:
                more["num_slices"] = self.slices
            if self.name == "v4":
                more["chip_config_name"] = "megacore"  # one device a chip, as JAX has it
        else:
            platform, name = "cuda", ""
            more = {"topology": f"1x{shape}", "target_config": _description(self.accelerator)}
        try:
            return list(topologies.get_topology_desc(name, platform, **more).devices)
        except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"--device={self}: the compiler refuses it: {reason}") from error


def let_cudnn_compile(device: jax.Device) -> None:
    """Lets JAX lower cuDNN's attention for a GPU that is not here: it asks the GPUs that are."""
    if device.platform != "gpu":
        return
    capability = tuple(map(int, str(device.compute_capability).split(".")))

    def parts(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    checks: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    checks.check_compute_capability = lambda least: capability >= parts(least)
    checks.is_cuda_compute_capability_equal = lambda other: capability == parts(other)


def parse(text: str, slices: int = 1) -> Target:
    """What `--device` and `--slices` ask for.

    Raises:
      UserError: an unknown device (the nearest is named), or a topology that does not exist.
    """
    name, _, size = text.strip().lower().partition(":")
    if name not in ACCELERATORS:
        known = difflib.get_close_matches(name, ACCELERATORS, n=1, cutoff=0)[0]
        raise UserError(
            f"--device={text}: no device is called {name!r}; did you mean {known}? Known: "
            f"{', '.join(ACCELERATORS)}"
        )
    example = _example(name)
    if not re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", size):
        raise UserError(f"--device={text}: say how many, as {name}:{example}")
    shape = tuple(map(int, size.split("x")))
    if ACCELERATORS[name].platform == "gpu":
        return _gpus(name, shape, slices, text)
    if reason := _impossible(name, shape):
        raise UserError(f"--device={text}: there is no such slice of {name}: {reason}")
    if math.prod(shape) * slices > MOST_DEVICES:
        raise UserError(f"--slices={slices}: more than {MOST_DEVICES} chips are not planned for")
    return Target(name, shape, slices)


def check_installed(target: Target) -> None:
    """Raises UserError, with the command that installs it, where the compiler is not here."""
    libraries, extra = ["libtpu"], "plan-tpu"
    if target.accelerator.platform == "gpu":
        libraries, extra = ["jax_cuda13_plugin", "nvidia", "nvidia.cudnn"], "plan-gpu"
    if any(importlib.util.find_spec(library) is None for library in libraries):
        raise UserError(
            f"plan: the compiler for {target.name} is not installed; python -m pip install -e "
            f"'.[{extra}]' in the project's folder brings it"
        )


def _example(name: str) -> str:
    if ACCELERATORS[name].platform == "gpu":
        return "8, or HOSTSxGPUS such as 4x8"
    return "4x4" if name in _FLAT_TPUS else "4x4x8"


def _gpus(name: str, shape: tuple[int, ...], slices: int, text: str) -> Target:
    if slices > 1:
        raise UserError(f"--slices is of TPUs; for GPUs write hosts: {name}:{slices}x{shape[-1]}")
    if len(shape) > 2 or shape[-1] > MOST_GPUS or math.prod(shape) > MOST_DEVICES:
        raise UserError(
            f"--device={text}: GPUs are {name}:GPUS or {name}:HOSTSxGPUS, with at most {MOST_GPUS} "
            f"GPUs a host and {MOST_DEVICES} in all"
        )
    return Target(name, shape if len(shape) == 2 else (1, *shape))


def _impossible(name: str, shape: tuple[int, ...]) -> str | None:
    """Why there is no such slice; None if there is."""
    if name in _FLAT_TPUS:
        flat = "x".join(map(str, shape))
        return None if flat in _FLAT else f"its slices are {', '.join(_FLAT)}"
    small = "x".join(map(str, shape)) in _SMALL
    cubes = (
        len(shape) == 3 and all(size % 4 == 0 for size in shape) and list(shape) == sorted(shape)
    )
    if small or (cubes and math.prod(shape) <= _MOST_CHIPS[name]):
        return None
    return (
        f"its slices are {', '.join(_SMALL)}, or AxBxC in multiples of 4 with A <= B <= C, such as "
        f"4x4x8, and at most {_MOST_CHIPS[name]} chips"
    )


def _description(gpu: Accelerator) -> str:
    """A GPU as XLA describes it: the text of a `GpuTargetConfigProto`."""
    threads, shared, of_block = _LIMITS[gpu.capability]
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {of_block}
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


# FOLDED tools.plan.capacity: How much of a device's memory a program may use.


GIB = 2**30
_JAX_TAKES = 0.75  # of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
_LIBTPU_LEAVES = 0.98  # of a TPU's: 15.75 of a v5e's 16 GiB


def usable(accelerator: Accelerator) -> float:
    """Bytes: of a GPU what JAX takes by default, of a TPU what its runtime leaves to programs."""
    return accelerator.memory * (_JAX_TAKES if accelerator.platform == "gpu" else _LIBTPU_LEAVES)
