"""The process in which a plan is compiled: a request on stdin, its report on stdout, both JSON.

It starts in `target.ENVIRONMENT`, which must stand before JAX starts, so that a compiler for
devices that are not there neither disturbs nor is disturbed by the caller's JAX.
"""

import dataclasses
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runs.config import complete_config, read_settings
from transformer_jax.runs.user_modules import load_modules
from transformer_jax.runtime import platform
from transformer_jax.tools.plan import mesh_search, report, target
from transformer_jax.tools.plan.program import (
    DoesNotFitError,
    micro_batches,
    rows_at_once,
    search,
    sizes,
    training_step,
)


def planned(request: dict[str, Any]) -> dict[str, Any]:
    """The report of one request.

    Args:
      request: "config" (nested), "modules", "device", "slices" and "what" ("train" or "decode").

    Raises:
      UserError: the config or the devices are impossible.
    """
    load_modules(request["modules"])
    settings = read_settings(complete_config(request["config"], "plan"))
    aim = target.parse(request["device"], request["slices"])
    devices, accelerator, what = aim.devices(), aim.accelerator, request["what"]
    target.let_cudnn_compile(devices[0])
    if what == "sizes":
        return dataclasses.asdict(sizes(settings, devices))
    with platform.compiling_for(devices[0]):
        dtype = product_dtype(settings.model.dtype).name
    head = {
        "device": str(aim),
        "devices": len(devices),
        "what": what,
        "versions": _versions(),
        "dtype": dtype,
        "remat": settings.train.remat,
    }

    def told(needed: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
        divided, rows = {}, 1
        if what == "train":
            divided = {"accumulation_steps": micro_batches(settings, mesh)}
            rows = rows_at_once(settings, mesh)
        return divided | {
            "advice": mesh_search.that_would_fit(needed, settings, mesh, rows),
            "warnings": mesh_search.warnings(settings, mesh, accelerator),
        }

    start = time.perf_counter()
    try:
        program = (training_step if what == "train" else search)(settings, devices)
    except DoesNotFitError as error:
        needed = report.refused(str(error), error.held, accelerator)
        return head | {"mesh": dict(error.mesh.shape), "memory": needed} | told(needed, error.mesh)
    seconds = round(time.perf_counter() - start, 1)
    needed = report.memory(program, accelerator)
    return (
        head
        | {"engine": program.engine, "mesh": dict(program.mesh.shape), "compile_s": seconds}
        | {"parameters": program.parameters, "tokens": program.tokens, "memory": needed}
        | {"attention": [str(choice) for choice in program.attention]}
        | report.costs(program, accelerator, what)
        | told(needed, program.mesh)
    )


def _versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Answers the request on stdin; libraries that print to stdout print to stderr instead."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jax.config.update("jax_enable_compilation_cache", False)
    found: dict[str, Any]
    try:
        found = {"report": planned(json.load(sys.stdin))}
    except UserError as error:
        found = {"error": str(error)}
    json.dump(found, answer)
    answer.close()


if __name__ == "__main__":
    main()
