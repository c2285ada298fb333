# SPDX-License-Identifier: Apache-2.0
"""Verifies a component: runs this project's oracles on it, in a shrunk version of a config."""

import json
import logging
import pickle
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import jax
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.lab.child_process import child_process, describe_end, kill
from transformer_jax.lab.verification import oracles
from transformer_jax.lab.verification.outcomes import NOT_RUN, Outcome, Verification
from transformer_jax.lab.verification.subject import Subject, shrunk
from transformer_jax.lab.verification.training_oracles import DEVICES
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.fused_attention import ATTENTION
from transformer_jax.nn.parameters import PARAMETERS, describe_unlisted
from transformer_jax.runs import user_modules
from transformer_jax.runs.config import nested, resolve, resolve_file
from transformer_jax.runs.outside import refuse_loaded
from transformer_jax.runs.settings import CHOICES, COMMAND, Settings
from transformer_jax.runtime.progress import Progress, shown

logger = logging.getLogger(__name__)

SECONDS = 600.0
"""Default time limit."""
ALL = (*oracles.ORACLES, oracles.BETWEEN_PROCESSES)
"""Names of all oracles."""

_STEPS = ("warmup_steps", "decay_steps", "cooldown_steps")
_KEPT = {
    "model.attention": ("model.attention",),
    "optimizer.schedule": ("train.num_steps", *(f"optimizer.{name}" for name in _STEPS)),
}
"""Fields that are not shrunk for a component of the user's."""
_CELLS = "__main__"  # the module of a notebook's cells
_SHIPPED = {DecoderOnly: "tiny_shakespeare_cpu", EncoderOnly: "bert_small"}
"""Config for an architecture of a base class; for all other components: quickstart."""
_XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    f"--xla_force_host_platform_device_count={DEVICES}"
)


def verify(
    config: Any,
    modules: user_modules.Modules = (),
    *,
    keep: Collection[str] = (),
    only: str = "",
    quick: bool = False,
    seconds: float = SECONDS,
    progress: bool = True,
) -> Verification:
    """Runs the oracles on the components of a config.

    Each oracle computes something in two ways that must agree, in a small model with the choices of
    the config, on drawn tokens (`verification.subject`). They run on the CPU, in another process.

    Args:
      config: the config whose components are verified; or a registered component, such as a class
        of a notebook's cell, which is then verified in a shipped config.
      modules: the user's modules, with components that the config names.
      keep: fields "section.field" that are not shrunk.
      only: regular expression of the oracles to run; the others are left out.
      quick: of the oracles of models, run those of `oracles.QUICK` only.
      seconds: time limit; oracles that have not ended by then are not run.
      progress: show the progress on stderr or, in a notebook, in one line.

    Raises:
      UserError: the config or a module cannot be used, the shrunk model cannot be built, or a
        component of a notebook's cell cannot be pickled.
    """
    user_modules.load_modules(modules)
    if isinstance(config, Settings | ConfigDict):
        settings = resolve(config, {}, (), COMMAND)
    else:
        settings = _settings_with(config)
    if not any(re.search(only, name) for name in ALL):
        raise UserError(f"no oracle is named like {only!r}; they are {', '.join(ALL)}")
    components = user_modules.user_components(settings)
    kernel = ("model.attention", settings.model.attention)
    kernel_module = ATTENTION.module_of(kernel[1]) if kernel[1] in ATTENTION else None
    if kernel_module and not kernel_module.startswith("transformer_jax."):
        components[kernel] = kernel_module
    for field, _ in components:
        keep = {*keep, *_KEPT.get(field, ())}
    small = shrunk(settings, keep)
    subjects = {f"{field}={name}": field for field, name in components} or {"the config": "model"}
    wanted = {name for field in subjects.values() for name in oracles.oracles_of(field, quick)}
    names = [name for name in ALL if name in wanted and re.search(only, name)]
    trains = oracles.OF_CALLBACKS in names
    read = [name for name in settings.values if trains or name.startswith("data.")]
    refuse_loaded(settings, read)  # the other process takes all for the user's own
    task = Subject(small).task  # errors of the config, at once
    unlisted = describe_unlisted(jax.eval_shape(task.init, jax.random.key(0)))
    if unlisted:
        logger.warning(unlisted)
    files = [str(modules)] if isinstance(modules, str | Path) else list(map(str, modules))
    files += [user_modules.location(module) for module in components.values() if module != _CELLS]
    work = {
        "modules": files,
        "cells": _pickle_cells(components),
        "config": nested(small.values),
        "oracles": names,
    }
    with shown(progress):
        outcomes = _run_oracles(work, seconds) if names else []
    for subject, field in subjects.items():
        readers = oracles.oracles_of(field)
        if not any(oracle in names for oracle in readers):
            reason = f"none of the oracles that were asked for reads it; {', '.join(readers)} would"
            outcomes.append(Outcome(subject, NOT_RUN, reason))
    return Verification(", ".join(subjects), outcomes)


def _settings_with(component: Any) -> Settings:
    """The settings of a shipped config with a registered component."""
    for field, registry in CHOICES.items():
        for name, entry in registry.items():
            if entry is component:
                bases = getattr(component, "__mro__", ())
                shipped = [_SHIPPED[base] for base in bases if base in _SHIPPED]
                return resolve_file([*shipped, "quickstart"][0], {field: name})
    raise UserError(f"verify: {component!r} is neither a config nor registered as a component")


def _pickle_cells(components: Mapping[tuple[str, str], str]) -> bytes:
    """Components of a notebook's cells, by value, and the table of parameters, which they extend.

    Args:
      components: {(field, name): module that registers it}.
    """
    entries = {
        (field, name): (CHOICES[field][name], CHOICES[field].options(name))
        for (field, name), module in components.items()
        if module == _CELLS
    }
    try:
        return cloudpickle.dumps((entries, PARAMETERS)) if entries else b""
    except Exception as error:  # whatever the object that it holds raises
        names = ", ".join(name for _, name in entries)
        raise UserError(
            f"verify: {names} of this notebook's cells cannot be handed to another process "
            f"({user_modules.describe_error(error)}): write it to a file and give modules=FILE"
        ) from error


def _run_oracles(work: Mapping[str, Any], seconds: float) -> list[Outcome]:
    """Runs `oracles.main`, and kills it after some seconds; what it did not reach is not run."""
    names = work["oracles"]
    outcomes: dict[str, Outcome] = {}
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, Progress(len(names), unit="oracle") as bar:
        environment = {"XLA_FLAGS": _XLA_FLAGS, "JAX_PLATFORMS": "cpu", "TMPDIR": folder}
        with child_process(
            oracles.__name__, pickle.dumps(work), folder, subprocess.PIPE, environment
        ) as process:
            assert process.stdout is not None
            timer = threading.Timer(seconds, kill, [process])
            timer.start()
            try:
                for line in process.stdout:
                    outcome = Outcome(**json.loads(line))
                    outcomes[outcome.oracle] = outcome
                    bar.report(f"{outcome.oracle}: {outcome.verdict}", outcome.oracle)
                    bar.advance(len(outcomes))
                process.wait()
            finally:
                timer.cancel()
        reason = describe_end(process, folder)
        if time.monotonic() >= deadline:
            reason = f"the time limit of {seconds:g} s was over"
    return [outcomes.get(name, Outcome(name, NOT_RUN, reason)) for name in names]
