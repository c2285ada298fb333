"""What would make a step fit, and what to look out for."""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from transformer_jax.parallel.mesh import DATA, FSDP
from transformer_jax.runs.config import Settings
from transformer_jax.runtime.accelerators import Accelerator
from transformer_jax.tools.plan.target import MOST_DEVICES

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
