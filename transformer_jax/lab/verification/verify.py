# SPDX-License-Identifier: Apache-2.0
"""Verifies a component: runs this project's oracles on it, in a shrunk version of a config."""

import collections
import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.lab.verification.cells import write_cells
from transformer_jax.lab.verification.device_oracles import DEVICE_ORACLES, DEVICES
from transformer_jax.lab.verification.oracles import ORACLES
from transformer_jax.lab.verification.outcomes import (
    NOT_RUN,
    Outcome,
    Verification,
    compare_trees,
    run_oracle,
)
from transformer_jax.lab.verification.subject import Subject, shrunk
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.runs.config import resolve, resolve_file
from transformer_jax.runs.outside import refuse_loaded
from transformer_jax.runs.settings import CHOICES, COMMAND, Settings, nested
from transformer_jax.runs.user_modules import Modules, load_modules, location, user_components
from transformer_jax.runtime.progress import Progress, shown

SECONDS = 600.0
"""Default time limit."""
BETWEEN_PROCESSES = "another process = the same"
ALL = (*ORACLES, *DEVICE_ORACLES, BETWEEN_PROCESSES)
"""Names of all oracles."""

_SHIPPED = {DecoderOnly: "tiny_shakespeare_cpu", EncoderOnly: "bert_small"}
"""Config for an architecture of a base class; for all other components: quickstart."""
_XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_POLL_SECONDS = 0.1


def verify(
    config: Any,
    modules: Modules = (),
    *,
    keep: Collection[str] = (),
    only: str = "",
    seconds: float = SECONDS,
    progress: bool = True,
) -> Verification:
    """Runs the oracles on the components of a config.

    Each oracle computes something in two ways that must agree, in a small model with the choices of
    the config, on drawn tokens (`verification.subject`). It runs on CPUs, in processes of its own.

    Args:
      config: the config whose components are verified; or a registered component, such as a class
        of a notebook's cell, which is then verified in a shipped config.
      modules: the user's modules, with components that the config names.
      keep: fields "section.field" that are not shrunk.
      only: regular expression of the oracles to run; the others are left out.
      seconds: time limit; oracles that have not ended by then are not run.
      progress: show the progress on stderr or, in a notebook, in one line.

    Raises:
      UserError: the config or a module cannot be used, the shrunk model cannot be built, or the
        source of a component in a notebook's cell is not found.
    """
    load_modules(modules)
    if isinstance(config, Settings | ConfigDict):
        settings = resolve(config, {}, (), COMMAND)
    else:
        settings = _settings_with(config)
    names = [name for name in ALL if re.search(only, name)]
    if not names:
        raise UserError(f"no oracle is named like {only!r}; they are {', '.join(ALL)}")
    refuse_loaded(settings, [name for name in settings.values if name.startswith("data.")])
    small = shrunk(settings, keep)
    components = user_components(settings)
    _ = Subject(small).task  # errors of the config, at once
    with tempfile.TemporaryDirectory() as folder, shown(progress):
        files = _module_files(modules, components, Path(folder))
        outcomes = _run_workers(small, files, names, Path(folder), seconds)
    subject = ", ".join(f"{field}={name}" for field, name in components) or "the config"
    return Verification(subject, outcomes)


def _settings_with(component: Any) -> Settings:
    """The settings of a shipped config with a registered component."""
    for field, registry in CHOICES.items():
        for name, entry in registry.items():
            if entry is component:
                shipped = "quickstart"
                for base in getattr(component, "__mro__", ()):
                    if base in _SHIPPED:
                        shipped = _SHIPPED[base]
                        break
                return resolve_file(shipped, {field: name})
    raise UserError(f"verify: {component!r} is neither a config nor registered as a component")


def _module_files(
    modules: Modules, components: Mapping[tuple[str, str], str], folder: Path
) -> list[str]:
    """Files or names of modules that register the user's components, as `--modules` takes them.

    Args:
      components: {(field, name): module that registers it}.
      folder: for the file of a notebook's components.
    """
    files = []
    for module in [modules] if isinstance(modules, str | Path) else modules:
        is_file = Path(os.path.expanduser(module)).exists()
        files.append(os.path.abspath(module) if is_file else str(module))
    files += [location(module) for module in components.values() if module != "__main__"]
    in_cells = [name for (_, name), module in components.items() if module == "__main__"]
    if in_cells:
        files.append(str(write_cells(in_cells, folder)))
    return list(dict.fromkeys(files))


def _run_workers(
    settings: Settings, modules: Sequence[str], names: Sequence[str], folder: Path, seconds: float
) -> list[Outcome]:
    """Runs oracles in two processes at the same time: those of one device, and the others."""
    parts = [[name for name in part if name in names] for part in (ORACLES, DEVICE_ORACLES)]
    gradients = [folder / f"{part}.npz" for part in range(len(parts))]
    compares = BETWEEN_PROCESSES in names
    outcomes: dict[str, Outcome] = {}
    with Progress(len(names), unit="oracle") as bar:
        work = {"config": nested(settings.values), "modules": modules}
        workers = [
            _Worker({**work, "oracles": part, "gradients": str(file) if compares else None})
            for part, file in zip(parts, gradients, strict=True)
            if part or compares
        ]
        for outcome in _outcomes(workers, seconds):
            outcomes[outcome.oracle] = outcome
            bar.report(f"{outcome.oracle}: {outcome.verdict}", outcome.oracle)
            bar.advance(len(outcomes))
    for worker in workers:
        for name in worker.oracles:
            outcomes.setdefault(name, Outcome(name, NOT_RUN, worker.failure))
    if compares:
        outcomes[BETWEEN_PROCESSES] = _compare_processes(*gradients)
    return [outcomes[name] for name in names]


class _Worker:
    """A process of `verification.worker`, and the threads that read its output.

    Attributes:
      oracles: names of those that it runs.
      outcomes: what it has written; None at its end.
      failure: why it has no more outcomes.
    """

    def __init__(self, work: Mapping[str, Any]) -> None:
        flags = f"{_XLA_FLAGS} --xla_force_host_platform_device_count={DEVICES}"
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transformer_jax.lab.verification.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
            text=True,
        )
        self.outcomes: queue.Queue[Outcome | None] = queue.Queue()
        self.oracles: Sequence[str] = work["oracles"]
        self.failure = ""
        self._errors: collections.deque[str] = collections.deque(maxlen=1)  # the last line
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it failed to start, and says why on stderr
            json.dump(work, self._process.stdin)
            self._process.stdin.close()
        for read in (self._read_outcomes, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    def _read_outcomes(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.outcomes.put(Outcome(**json.loads(line)))
        status = self._process.wait()
        last = self._errors[-1] if self._errors else "it wrote nothing"
        # A worker that was stopped keeps that reason.
        self.failure = self.failure or f"the process ended with status {status}: {last}"
        self.outcomes.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(line.strip() for line in self._process.stderr if line.strip())

    def stop(self, reason: str) -> None:
        """Ends the process."""
        self.failure = reason
        self._process.kill()


def _outcomes(workers: Sequence[_Worker], seconds: float) -> Iterator[Outcome]:
    """Yields the outcomes of all workers as they come; ends them after some seconds."""
    deadline = time.monotonic() + seconds
    running = list(workers)
    try:
        while running and time.monotonic() < deadline:
            for worker in list(running):
                with contextlib.suppress(queue.Empty):
                    outcome = worker.outcomes.get(timeout=_POLL_SECONDS)
                    if outcome is None:
                        running.remove(worker)
                    else:
                        yield outcome
    finally:  # also if the caller is interrupted
        for worker in running:
            worker.stop(f"the time limit of {seconds:g} s was over")


def _compare_processes(first: Path, second: Path) -> Outcome:
    """Compares the gradients that two processes computed of the same step."""
    if not (first.exists() and second.exists()):
        return Outcome(BETWEEN_PROCESSES, NOT_RUN, "a process has computed no gradients")
    gradients = {**np.load(first)}
    expected = {**np.load(second)}
    return run_oracle(BETWEEN_PROCESSES, lambda: compare_trees(gradients, expected))
