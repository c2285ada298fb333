# SPDX-License-Identifier: Apache-2.0
"""Process that compiles a plan: a request on stdin, its report on stdout, both JSON.

It is started in `target.ENVIRONMENT`, which must be set before JAX starts. In a process of its own,
the compiler for absent devices and the caller's JAX do not disturb each other.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

import jax

from transformer_jax.errors import UserError
from transformer_jax.lab.plan import mesh_search
from transformer_jax.lab.plan.program import (
    compile_search,
    compile_training_step,
    micro_batches,
    search_sizes,
)
from transformer_jax.lab.plan.report import cost_report, memory_report
from transformer_jax.lab.plan.target import allow_cudnn_lowering, parse_target
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import Origin
from transformer_jax.runs.user_modules import load_modules
from transformer_jax.runtime import platform


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles what a request asks for, and reports its costs.

    Args:
      request: "config" (nested), "modules", "device", "slices" and "what": "train", "decode" or
        "sizes", which only returns the fields of `SearchSizes`.

    Raises:
      UserError: the config or the devices are impossible.
    """
    load_modules(request["modules"])
    settings = read_settings(request["config"], {}, Origin("config", "plan"))
    target = parse_target(request["device"], request["slices"])
    devices = target.devices()
    accelerator = target.accelerator
    allow_cudnn_lowering(devices[0])
    if request["what"] == "sizes":
        return dataclasses.asdict(search_sizes(settings, devices))
    trains = request["what"] == "train"
    with platform.compiling_for(devices[0]):
        dtype = product_dtype(settings.model.dtype).name
    start = time.perf_counter()
    program = (compile_training_step if trains else compile_search)(settings, devices)
    seconds = round(time.perf_counter() - start, 1)
    mesh = program.mesh
    memory = memory_report(program, accelerator)
    report: dict[str, Any] = {
        "device": str(target),
        "devices": len(devices),
        "what": request["what"],
        "versions": _versions(),
        "dtype": dtype,
        "remat": settings.train.remat,
        "mesh": dict(mesh.shape),
        "memory": memory,
    }
    if program.compiled:
        report |= {"compile_s": seconds, "tokens": program.tokens, **program.facts}
        report |= cost_report(program, accelerator, dtype)
    rows = 1
    if trains:
        report["accumulation_steps"], rows = micro_batches(settings, mesh)
    report["advice"] = mesh_search.suggest_changes(memory, settings, mesh, rows)
    report["warnings"] = mesh_search.warnings(settings, mesh, accelerator)
    return report


def _versions() -> dict[str, str]:
    """Versions of the packages that compile; absent ones are left out."""
    versions = {}
    for name in ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def main() -> None:
    """Answers the request on stdin; other output to stdout goes to stderr."""
    # The descriptors, since the compilers are C++ and do not know sys.stdout.
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jax.config.update("jax_enable_compilation_cache", False)
    response: dict[str, Any]
    try:
        response = {"report": answer(json.load(sys.stdin))}
    except UserError as error:
        response = {"error": str(error)}
    json.dump(response, stdout)
    stdout.close()


if __name__ == "__main__":
    main()
