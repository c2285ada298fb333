"""Plans: what a config's step or search would cost on devices that are not here."""

import json
import logging
import os
import subprocess
import sys
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.runs.user_modules import Modules
from transformer_jax.tools.plan import target
from transformer_jax.tools.plan.mesh_search import (
    Sizes,
    less_and_less_memory,
    meshes,
    settings_of,
    speed,
)
from transformer_jax.tools.plan.target import GIB

logger = logging.getLogger(__name__)

NOTE = (
    "Bounds, not measurements: times are the least that the compiled program's products, bytes and "
    "integer operations take at the makers' peaks (TPUs: the compiler's own estimate in cycles), "
    "with every exchange beside the computation. No device was at hand to say how far off they are."
)


def plan(
    config: ConfigDict,
    device: str,
    slices: int = 1,
    decode: bool = False,
    modules: Modules = (),
) -> dict[str, Any]:
    """Compiles the step that `train` would run on other devices, and adds up what it costs.

    Nothing runs, and the devices need not exist: the makers' compilers do (extras `plan-tpu` and
    `plan-gpu`). A process of its own compiles, so that this one's JAX stays as it is.

    Args:
      config: of the run.
      device: "h100:8" (GPUs of a host), "h100:32x8" (hosts x GPUs), "v5p:4x4x8" (chips of a slice).
      slices: of TPUs, how many such slices.
      decode: the search instead of the training step.
      modules: the user's own, with components that the config names.

    Returns:
      JSON's types: memory a device needs and has ("fits"), FLOPs, bytes, times in ms by group and
      of the most expensive kernels, and the MFU and tokens a second that they allow at most.

    Raises:
      UserError: unknown devices, an extra that is not installed, an impossible config or mesh.

    Example:
      >>> plan(config, "v5e:2x4")["mfu"]
    """
    aim = target.parse(device, slices)
    target.check_installed(aim)
    what = "decode" if decode else "train"
    return _in_a_child(_request(config, device, slices, what, modules)) | {"note": NOTE}


def search(
    config: ConfigDict, device: str, slices: int = 1, modules: Modules = ()
) -> dict[str, Any]:
    """Tries meshes, remat and gradient accumulation on other devices, and ranks what fits.

    Only meshes whose part of the state leaves room on a device are compiled, those that divide the
    least first, and of each the first settings that fit.

    Returns:
      "meshes": reports as `plan` gives them, with their "settings", the fastest first.

    Raises:
      UserError: as `plan`, or no mesh has room for the parameters and the optimizer's state.
    """
    aim = target.parse(device, slices)
    target.check_installed(aim)
    sizes = Sizes(**_in_a_child(_request(config, device, slices, "sizes", modules)))
    possible = meshes(sizes, aim.accelerator)
    if not possible:
        raise UserError(
            f"no mesh of {aim} has room for the {sizes.state / GIB:.1f} GiB of parameters and "
            "optimizer state; take more devices"
        )
    found = []
    for number, mesh in enumerate(possible, 1):
        logger.info("mesh %d of %d: %s", number, len(possible), mesh)
        for changed in less_and_less_memory(config, mesh):
            report = {"settings": settings_of(changed)}
            try:
                report |= plan(changed, device, slices, modules=modules)
            except UserError as error:
                logger.info("%s", error)  # the rows do not divide into more micro-batches
                break
            found.append(report)
            if report["memory"]["fits"]:
                break
    return {"meshes": sorted(found, key=speed, reverse=True), "note": NOTE}


def does_not_fit(report: dict[str, Any]) -> str:
    """One line: by how much the step of a report does not fit, and what would do."""
    memory, advice = report["memory"], report.get("advice", [])
    if "left_gib" not in memory:
        return f"the step does not fit {report['device']}: {memory['reason']}"
    needs = f"{memory['peak_gib']:.1f} GiB of the {memory['usable_gib']:.1f} GiB that a device has"
    would = f"; would do: {', or '.join(advice)}" if advice else ""
    missing = f"{-memory['left_gib']:.1f} GiB too much"
    return f"the step does not fit {report['device']}: it needs {needs}, {missing}{would}"


def _request(
    config: ConfigDict, device: str, slices: int, what: str, modules: Modules
) -> dict[str, Any]:
    aim = {"device": device, "slices": slices, "what": what}
    return {"config": config.to_dict(), "modules": modules} | aim


def _in_a_child(request: dict[str, Any]) -> dict[str, Any]:
    """The report that a process of its own makes of a request.

    Raises:
      UserError: it refuses the request.
      RuntimeError: it failed, with the end of what it printed.
    """
    environment = {**os.environ, **target.ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for name in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS"):
        environment.pop(name, None)  # made for the devices that are here
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.tools.plan.child"],
        input=json.dumps(request, default=str),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"the process that compiles ended with status {done.returncode}:\n{done.stderr[-4000:]}"
        )
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["report"]
