# SPDX-License-Identifier: Apache-2.0
"""Plans: the cost of a config's training step or search on devices that are not here, and the speed
at which this machine packs its batches."""

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.examples import Selection
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.data.sets.download import without_downloads
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.lab.plan import mesh_search, program
from transformer_jax.lab.plan.report import cost_report, memory_report, plan_as_text
from transformer_jax.lab.plan.target import ENVIRONMENT, GIB, parse_target, require_compiler
from transformer_jax.runs import build
from transformer_jax.runs.config import nested, override, read_settings, resolve
from transformer_jax.runs.outside import refuse_loaded
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import COMMAND, Origin, Settings
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.tokenization import load_tokenizers

logger = logging.getLogger(__name__)

NOTE = (
    "Bounds, not measurements: times are the least that the compiled program's products, bytes and "
    "integer operations take at the manufacturers' peaks (TPUs: the compiler's own estimate in "
    "cycles), with all communication hidden behind computation. Real steps take longer: on an "
    "H200, GPT-2's took 1.7 times and the base model's 4.1 times the bound for an H100."
)

_SECONDS = 1.0
_CHARACTERS = 1 << 21
"""Characters of text to pack. A tokenizer is trained on them in a second or two."""


class Plan(dict[str, Any]):
    """The report of a plan, shown as its table."""

    def __repr__(self) -> str:
        return plan_as_text(self).rstrip()


def plan(
    config: Settings | ConfigDict,
    device: str,
    slices: int = 1,
    decode: bool = False,
    modules: Modules = (),
) -> Plan:
    """Compiles the step that `train` would run on other devices, and sums up its costs.

    Nothing is run, and the devices need not exist: the manufacturers' compilers do the work (extras
    `plan-tpu` and `plan-gpu`), in a separate process.

    Args:
      device: "h100:8" (GPUs of a host), "h100:32x8" (hosts x GPUs), "v5p:4x4x8" (chips of a slice).
      slices: number of such slices of TPUs.
      decode: plan the search instead of the training step.
      modules: the user's own, with components that the config names.

    Returns:
      JSON types, shown as a table: memory that a device needs and has ("fits"), FLOPs, bytes,
      times in ms by group and of the most expensive kernels, and upper bounds of MFU and tokens a
      second.

    Raises:
      UserError: an unknown device, an extra that is not installed, an impossible config or mesh.

    Example:
      >>> plan(config, "v5e:2x4")["mfu"]
    """
    require_compiler(parse_target(device, slices))
    settings = resolve(config, {}, modules, COMMAND)
    request = "decode" if decode else "train"
    return Plan(_run_child(settings, device, slices, request, modules), note=NOTE)


def search_meshes(
    config: Settings | ConfigDict, device: str, slices: int = 1, modules: Modules = ()
) -> dict[str, Any]:
    """Tries meshes, remat and gradient accumulation on other devices, and ranks what fits.

    Compiles only meshes on which a device has room for its part of the state, those that divide it
    least first. On each mesh, tries settings with less and less memory until one fits.

    Returns:
      "meshes": reports of `plan` with their "settings", the fastest first.

    Raises:
      UserError: an error of `plan`, or no mesh has room for parameters and optimizer state.
    """
    target = parse_target(device, slices)
    require_compiler(target)
    settings = resolve(config, {}, modules, COMMAND)
    sizes = mesh_search.SearchSizes(**_run_child(settings, device, slices, "sizes", modules))
    possible = mesh_search.candidate_meshes(sizes, target.accelerator)
    if not possible:
        raise UserError(
            f"no mesh of {target} has room for the {sizes.state / GIB:.1f} GiB of parameters and "
            "optimizer state; take more devices"
        )
    reports = []
    for number, mesh in enumerate(possible, 1):
        logger.info("mesh %d of %d: %s", number, len(possible), mesh)
        for changed in mesh_search.settings_by_memory(settings, mesh):
            report = {"settings": mesh_search.varied_fields(changed)}
            try:
                report |= plan(changed, device, slices, modules=modules)
            except UserError as error:
                logger.info("%s", error)  # rows cannot be divided further
                break
            reports.append(report)
            if report["memory"]["fits"]:
                break
    return {"meshes": sorted(reports, key=mesh_search.rank_key, reverse=True), "note": NOTE}


def does_not_fit_message(report: dict[str, Any]) -> str:
    """Message about a step that does not fit: how much memory it lacks, and what would help."""
    memory = report["memory"]
    advice = report.get("advice", [])
    if "left_gib" not in memory:
        return f"the step does not fit {report['device']}: {memory['reason']}"
    needs = f"{memory['peak_gib']:.1f} GiB of the {memory['usable_gib']:.1f} GiB that a device has"
    excess = f"{-memory['left_gib']:.1f} GiB too much"
    changes = f"; to make it fit: {', or '.join(advice)}" if advice else ""
    return f"the step does not fit {report['device']}: it needs {needs}, {excess}{changes}"


def _run_child(
    settings: Settings, device: str, slices: int, what: str, modules: Modules
) -> dict[str, Any]:
    """Calls `answer` in a process of its own: `target.ENVIRONMENT` must be set before JAX
    starts, and the compiler for absent devices and the caller's JAX must not disturb each other.

    Raises:
      UserError: the child rejected the request.
      RuntimeError: the child failed; the message has the end of its output.
    """
    refuse_loaded(settings, ("train.distillation.teacher",))  # the child reads its config
    request: dict[str, Any] = {"config": nested(settings.values), "what": what}
    request |= {"modules": modules, "device": device, "slices": slices}
    environment = {**os.environ, **ENVIRONMENT}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # for the local devices
    done = subprocess.run(
        [sys.executable, "-m", "transformer_jax.lab.plan.plan"],
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
    if request["what"] == "sizes":
        return dataclasses.asdict(program.search_sizes(settings, devices))
    trains = request["what"] == "train"
    start = time.perf_counter()
    compile_program = program.compile_training_step if trains else program.compile_search
    planned = compile_program(settings, devices)
    seconds = round(time.perf_counter() - start, 1)
    mesh = planned.mesh
    memory = memory_report(planned, accelerator)
    report: dict[str, Any] = {
        "device": str(target),
        "devices": len(devices),
        "what": request["what"],
        "versions": _versions(),
        "remat": settings.train.remat,
        "mesh": dict(mesh.shape),
        "memory": memory,
        **planned.facts,
    }
    if planned.compiled:
        report |= {"compile_s": seconds, "tokens": planned.tokens}
        report |= cost_report(planned, accelerator)
    rows = 1
    if trains:
        report["accumulation_steps"], rows = program.micro_batches(settings, mesh)
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
    """Answers the request on stdin, both JSON; other output to stdout goes to stderr."""
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


def packing_speed(settings: Settings) -> dict[str, Any]:
    """Measures how many tokens per second one process of this machine packs, for about a second.

    Its texts are the first of the training data, with a tokenizer trained on them. After the first
    visit short texts are packed from their tokens, as in later epochs.

    Returns:
      "tokens_per_s"; or "reason", why nothing was measured: the data are not on this machine, say.
    """
    try:
        with without_downloads(), tempfile.TemporaryDirectory() as folder:
            return {"tokens_per_s": _measure(settings, Path(folder) / "tokenizer")}
    except UserError as error:
        return {"reason": str(error)}


def _measure(settings: Settings, folder: Path) -> int:
    if {"tfds", "hf_dataset"} & {*settings.data.name.split(",")}:
        raise UserError(f"data.name {settings.data.name} may have to be downloaded")
    settings = override(settings, {"data.cache_dir": None, "data.num_workers": 0})
    examples = open_split(settings.data, "train")
    if isinstance(examples, TextBlocks):
        raise UserError("data.block_megabytes reads text from where it is, not from this machine")
    characters = 0
    count = 0
    while count < len(examples) and characters < _CHARACTERS:
        example = examples[count]
        characters += sum(len(text) for text in example.values() if isinstance(text, str))
        count += 1
    texts = Selection(examples, np.arange(count))
    build_tokenizers(settings, folder, texts)
    tokenizers = load_tokenizers(folder)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    rows = build.batch_rows(settings, task)
    packed = build.batches_of(settings, task, texts, rows, logs_overlong=False)
    with contextlib.closing(packed) as batches:
        next(batches)  # the thread has started
        start = time.perf_counter()
        tokens = 0
        while time.perf_counter() - start < _SECONDS:
            batch = next(batches)
            tokens += sum(int((batch[f"{side}_segment_ids"] > 0).sum()) for side in task.read)
        return round(tokens / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
