# SPDX-License-Identifier: Apache-2.0
"""Search for a mesh: which division of a step among devices fits, and which is the fastest."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from jax.sharding import Mesh

from transformer_jax.lab.plan.target import MAX_DEVICES, usable_bytes
from transformer_jax.parallel.sharding import DATA, FSDP
from transformer_jax.runs.config import override
from transformer_jax.runs.settings import Settings
from transformer_jax.runtime.accelerators import Accelerator

MIN_COLUMNS = 128
"""Least columns of a parameter on a TPU, the width of its registers. With fewer, gathers become
all-reduces of whole parameters."""
MAX_MESHES = 6
MAX_TRIES = 4
"""Tries of one mesh, each with less memory."""
STATE_SHARE = 0.8
"""Share of a device's memory that its part of the state may take; the rest is for temporaries."""
_FACTORS = [2**i for i in range(1, 15)]  # tried divisors of state and batch


def suggest_changes(
    memory: Mapping[str, Any], settings: Settings, mesh: Mesh, rows: int
) -> list[str]:
    """Settings that would each make a step fit; none if it fits or too little is known.

    These are estimates: `fsdp` divides the state, micro-batches divide the temporaries. The effect
    of remat is not estimated.

    Args:
      memory: result of `report.memory_report`.
      rows: of a micro-batch on each device.
    """
    if memory["fits"] or "temporaries_gib" not in memory:
        return []
    state = memory["parameters_gib"] + memory.get("optimizer_gib", 0.0)
    temporaries = memory["temporaries_gib"]
    usable = memory["usable_gib"]
    fsdp = mesh.shape[FSDP]
    suggestions = []
    for factor in _FACTORS:
        if mesh.shape[DATA] % factor == 0 and state / factor + temporaries <= usable:
            suggestions.append(f"parallel.fsdp={fsdp * factor}")
            break
    for factor in _FACTORS[:10]:
        if rows % factor == 0 and state + temporaries / factor <= usable:
            changes = with_more_micro_batches(settings.train, factor)
            suggestions += [f"{name}={value}" for name, value in changes.items()]
            break
    if settings.train.remat == "none":
        suggestions.append("train.remat=full (not estimated)")
    if not suggestions or mesh.size == 1:
        enough = [factor for factor in _FACTORS if (state + temporaries) / factor <= usable]
        least = min(enough, default=MAX_DEVICES)
        suggestions.append(f"{mesh.size * least} such devices, with parallel.fsdp={fsdp * least}")
    return suggestions


def with_more_micro_batches(train: Any, factor: int) -> dict[str, int]:
    """The field and value that divide a batch into `factor` times as many micro-batches.

    Empty if a device would be left without a row.

    Args:
      train: section of a config.
      factor: a power of 2.
    """
    rows = train.rows_per_device
    if rows is None:
        return {"train.accumulation_steps": train.accumulation_steps * factor}
    return {"train.rows_per_device": rows // factor} if rows % factor == 0 else {}


def warnings(settings: Settings, mesh: Mesh, accelerator: Accelerator) -> list[str]:
    """Warnings about settings that are needlessly slow on a device."""
    fsdp = mesh.shape[FSDP]
    messages = []
    columns = settings.model.d_model / fsdp
    if accelerator.platform == "tpu" and fsdp > 1 and columns < MIN_COLUMNS:
        fitting = max(settings.model.d_model // MIN_COLUMNS, 1)
        messages.append(
            f"d_model {settings.model.d_model} / fsdp {fsdp} is below {MIN_COLUMNS}: on TPUs "
            f"gathers of parameters become all-reduces; take fsdp {fitting} or less, and data for "
            "the rest"
        )
    if settings.model.dtype == "bfloat16" and "bfloat16" not in accelerator.peaks:
        messages.append(
            "model.dtype is bfloat16, which this device does not multiply: it is rounded and then "
            "multiplied as float32; take auto"
        )
    return messages


@dataclasses.dataclass(frozen=True)
class SearchSizes:
    """Sizes that limit the meshes to try.

    Attributes:
      devices: devices along `data`, `fsdp` and `tensor`.
      local: devices of a host or a slice, within which `tensor` stays.
      state: bytes of parameters and optimizer state.
      rows: of a batch, for each device along `expert`.
      heads: of keys and values.
    """

    devices: int
    local: int
    state: int
    rows: int
    d_model: int
    heads: int


def candidate_meshes(sizes: SearchSizes, accelerator: Accelerator) -> list[dict[str, int]]:
    """Meshes {"data", "fsdp", "tensor"} on which a device has room for its part of the state.

    Meshes that divide the state least come first, since they communicate least.
    """
    meshes = []
    for tensor, fsdp in itertools.product(_divisors(sizes.local), _divisors(sizes.devices)):
        data, rest = divmod(sizes.devices, fsdp * tensor)
        if rest or sizes.heads % tensor or sizes.rows % (data * fsdp) or sizes.d_model % fsdp:
            continue
        if accelerator.platform == "tpu" and fsdp > 1 and sizes.d_model // fsdp < MIN_COLUMNS:
            continue
        if sizes.state / (fsdp * tensor) <= STATE_SHARE * usable_bytes(accelerator):
            meshes.append({"data": data, "fsdp": fsdp, "tensor": tensor})
    return meshes[:MAX_MESHES]


def settings_by_memory(settings: Settings, mesh: dict[str, int]) -> Iterator[Settings]:
    """Yields settings on a mesh with less and less memory.

    First unchanged, then with remat, then with more and more micro-batches, down to one row a
    device.
    """
    fields: dict[str, Any] = {f"parallel.{axis}": size for axis, size in mesh.items()}
    yield override(settings, fields)
    if settings.train.remat == "none":
        fields["train.remat"] = "full"
        yield override(settings, fields)
    for factor in _FACTORS[: MAX_TRIES - 1]:
        micro_batches = with_more_micro_batches(settings.train, factor)
        if micro_batches:
            yield override(settings, fields | micro_batches)


def varied_fields(settings: Settings) -> dict[str, Any]:
    """The fields that a search varies, with their values."""
    axes = {axis: getattr(settings.parallel, axis) for axis in ("data", "fsdp", "tensor")}
    varied = ("accumulation_steps", "rows_per_device", "remat")
    return axes | {field: getattr(settings.train, field) for field in varied}


def rank_key(report: dict[str, Any]) -> float:
    """Key to rank reports by, higher is better: tokens a second; steps that do not fit are last."""
    if report["memory"]["fits"]:
        return report["tokens_per_s"]
    return -report["memory"].get("peak_gib", math.inf)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
