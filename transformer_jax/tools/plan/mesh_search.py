"""Trying meshes: which division of a step among devices fits, and which is the fastest."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax.parallel.sharding import DATA, FSDP
from transformer_jax.runs.config import Settings, override
from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan.target import MOST_DEVICES, usable

# FOLDED tools.plan.advice: What would make a step fit, and what to look out for.


LEAST_SHARE = 128
"""Columns of a parameter that a TPU's registers hold side by side: with fewer a device, gathers
become all-reduces of whole parameters."""


def that_would_fit(
    memory: Mapping[str, Any], settings: Settings, mesh: Mesh, rows: int
) -> list[str]:
    """Estimates, where the step does not fit: settings that would each do alone.

    State divides by `fsdp`, temporaries by micro-batches; remat keeps the input of a layer
    alone, which is not estimated.

    Args:
      memory: as `report.memory`.
      settings: of the config.
      mesh: the devices.
      rows: of a micro-batch on each of them, which more micro-batches would divide.
    """
    if memory["fits"]:
        return []
    if "temporaries_gib" not in memory:
        return []
    state = memory["parameters_gib"] + memory.get("optimizer_gib", 0.0)
    temporaries, usable = memory["temporaries_gib"], memory["usable_gib"]
    fsdp, found = mesh.shape[FSDP], []
    for more in (2**i for i in range(1, 15)):
        if mesh.shape[DATA] % more == 0 and state / more + temporaries <= usable:
            found.append(f"parallel.fsdp={fsdp * more}")
            break
    for more in (2**i for i in range(1, 11)):
        if rows % more == 0 and state + temporaries / more <= usable:
            found += [f"{name}={value}" for name, value in smaller(settings.train, more).items()]
            break
    if settings.train.remat == "none":
        found.append("train.remat=full (not estimated)")
    if not found or mesh.size == 1:
        least = next(
            (n for n in (2**i for i in range(1, 15)) if (state + temporaries) / n <= usable),
            MOST_DEVICES,
        )
        found.append(f"{mesh.size * least} such devices, with parallel.fsdp={fsdp * least}")
    return found


def smaller(train: Any, more: int) -> dict[str, int]:
    """The field that divides a batch into so many times as many micro-batches, and its value; none
    where a device would be left without a row.

    Args:
      train: the section of a config.
      more: a power of 2.
    """
    rows = train.rows_per_device
    if rows is None:
        return {"train.accumulation_steps": train.accumulation_steps * more}
    return {"train.rows_per_device": rows // more} if rows % more == 0 else {}


def warnings(settings: Settings, mesh: Mesh, accelerator: Accelerator) -> list[str]:
    """What is likely to cost more than it must."""
    fsdp, found = mesh.shape[FSDP], []
    share = settings.model.d_model / fsdp
    if accelerator.platform == "tpu" and fsdp > 1 and share < LEAST_SHARE:
        fitting = max(settings.model.d_model // LEAST_SHARE, 1)
        found.append(
            f"d_model {settings.model.d_model} / fsdp {fsdp} is below {LEAST_SHARE}: on TPUs "
            f"gathers of parameters become all-reduces; take fsdp {fitting} or less, and data for "
            "the rest"
        )
    if settings.model.dtype == "bfloat16" and "bfloat16" not in accelerator.peaks:
        found.append(
            "model.dtype is bfloat16, which this device does not multiply: it is rounded and then "
            "multiplied as float32; take auto"
        )
    return found


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
