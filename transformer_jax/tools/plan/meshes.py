"""Trying meshes: which division of a step among devices fits, and which is the fastest."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.runs.config import override
from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan.advice import LEAST_SHARE, smaller
from transformer_jax.tools.plan.capacity import usable

MOST_MESHES = 6
MOST_TRIES = 4  # of one mesh, with less and less memory
STATE_SHARE = 0.8
"""Of a device's memory, what its part of the state may take: the rest is for temporaries."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What decides which meshes are worth compiling.

    Attributes:
      devices: number of them.
      local: devices that share a host or a slice, within which `tensor` stays.
      state: bytes of the parameters and the optimizer's state.
      rows: of a batch.
      d_model: width of the model.
      heads: of keys and values.
    """

    devices: int
    local: int
    state: int
    rows: int
    d_model: int
    heads: int


def meshes(sizes: Sizes, accelerator: Accelerator) -> list[dict[str, int]]:
    """Meshes {"data", "fsdp", "tensor"} whose part of the state leaves room on a device: those that
    divide the least first, as they exchange the least."""
    found = []
    for tensor, fsdp in itertools.product(_divisors(sizes.local), _divisors(sizes.devices)):
        data, rest = divmod(sizes.devices, fsdp * tensor)
        if rest or sizes.heads % tensor or sizes.rows % (data * fsdp) or sizes.d_model % fsdp:
            continue
        if accelerator.platform == "tpu" and fsdp > 1 and sizes.d_model // fsdp < LEAST_SHARE:
            continue
        if sizes.state / (fsdp * tensor) <= STATE_SHARE * usable(accelerator):
            found.append({"data": data, "fsdp": fsdp, "tensor": tensor})
    return found[:MOST_MESHES]


def less_and_less_memory(config: ConfigDict, mesh: dict[str, int]) -> Iterator[ConfigDict]:
    """A config on a mesh: as it is, with remat, and with ever more micro-batches, as far as the
    rows of a device go."""
    on_mesh = {f"parallel.{axis}": size for axis, size in mesh.items()}
    remat = config.train.remat
    yield override(config, on_mesh)
    if remat == "none":
        remat = "full"
        yield override(config, on_mesh | {"train.remat": remat})
    for more in (2**i for i in range(1, MOST_TRIES)):
        if part := smaller(config.train, more):
            yield override(config, on_mesh | {"train.remat": remat} | part)


def settings_of(config: ConfigDict) -> dict[str, Any]:
    """What a search varies, as a config has it."""
    axes = {axis: config.parallel[axis] for axis in ("data", "fsdp", "tensor")}
    varied = ("accumulation_steps", "rows_per_device", "remat")
    return axes | {field: config.train[field] for field in varied}


def speed(report: dict[str, Any]) -> float:
    """To rank by: tokens a second at most; what does not fit comes last, the largest at the end."""
    if report["memory"]["fits"]:
        return report["tokens_per_s"]
    return -report["memory"].get("peak_gib", math.inf)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
