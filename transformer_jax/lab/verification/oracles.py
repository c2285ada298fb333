# SPDX-License-Identifier: Apache-2.0
"""The oracles by name, and the process that runs them.

    python -m transformer_jax.lab.verification.oracles < WORK > OUTCOMES

`verify` starts the process on the CPU, with two forced host devices.
"""

import dataclasses
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.lab.child_process import child_process, describe_end, end_with_parent
from transformer_jax.lab.verification import component_oracles, forward_oracles, training_oracles
from transformer_jax.lab.verification.outcomes import Comparison, run_oracle
from transformer_jax.lab.verification.subject import Subject
from transformer_jax.nn.parameters import PARAMETERS
from transformer_jax.parallel.sharding import AXIS_NAMES, DATA
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import CHOICES, COMMAND
from transformer_jax.runs.user_modules import load_modules
from transformer_jax.runtime.platform import use_compilation_cache

BETWEEN_PROCESSES = "another process = the same"


class Oracle(NamedTuple):
    """An oracle.

    Attributes:
      compare: compares two computations that must give the same; it raises DoesNotApplyError or
        UserError where they have no meaning.
      fields: those that name the components that it reads; none: it reads all of model and task.
      is_quick: one of the model for a first look, besides those of the component's own kind.
    """

    compare: Callable[[Subject], Comparison]
    fields: Sequence[str] = ()
    is_quick: bool = False


OF_CALLBACKS = "callbacks: resumed = uninterrupted"
_RESUMED = "resumed = uninterrupted"
_OPTIMIZER = ("optimizer.name", "optimizer.transforms")
DEVICE_ORACLES: Mapping[str, Oracle] = {
    "pmap = one device": Oracle(partial(training_oracles.divided, engine="pmap", axis=DATA)),
    **{
        f"{axis} axis = one device": Oracle(
            partial(training_oracles.divided, engine="jit", axis=axis)
        )
        for axis in AXIS_NAMES
    },
}
ORACLES: Mapping[str, Oracle] = {
    "packed = padded": Oracle(forward_oracles.packed, is_quick=True),
    "cached = full": Oracle(forward_oracles.cached, is_quick=True),
    "causal": Oracle(forward_oracles.causal, is_quick=True),
    "float32 near float64": Oracle(forward_oracles.exact, is_quick=True),
    "bfloat16 near float32": Oracle(forward_oracles.bfloat16),
    "accumulated = one batch": Oracle(training_oracles.accumulated, is_quick=True),
    "scanned = unrolled": Oracle(training_oracles.scanned),
    "remat full = none": Oracle(partial(training_oracles.rematerialized, remat="full")),
    "remat dots = none": Oracle(partial(training_oracles.rematerialized, remat="dots")),
    "draws by the key": Oracle(training_oracles.randomness),
    "built again = the same": Oracle(training_oracles.repeated),
    _RESUMED: Oracle(training_oracles.resumed, (*_OPTIMIZER, "optimizer.schedule")),
    "seeds together = apart": Oracle(training_oracles.seeds),
    "exported = imported": Oracle(training_oracles.exported),
    **DEVICE_ORACLES,
    "data read again = the same": Oracle(training_oracles.data, ("task.name", "data.name")),
    "predictions: alone = together": Oracle(component_oracles.predicted, ("task.name",)),
    "loss of states = of logits": Oracle(component_oracles.lost, ("train.loss",)),
    "tokenizer: text = text": Oracle(component_oracles.tokenized, ("tokenizer.kind",)),
    "search: alone = in a batch": Oracle(
        component_oracles.searched, ("decode.search", "decode.constraint")
    ),
    "metric: any order": Oracle(component_oracles.scored, ("task.metric",)),
    "schedule: compiled = not": Oracle(component_oracles.scheduled, ("optimizer.schedule",)),
    "optimizer: stacked = single": Oracle(component_oracles.updated, _OPTIMIZER),
    "kernel = plain": Oracle(component_oracles.fused, ("model.attention",)),
    OF_CALLBACKS: Oracle(component_oracles.continued, ("train.callbacks", "logging.trackers")),
}
QUICK = [name for name, oracle in ORACLES.items() if oracle.is_quick]
_IN_MODEL = ("task.name", "train.loss")
"""Fields of single components that are part of the model or the task."""
_OF_MODEL_ALONE = [name for name, oracle in ORACLES.items() if not oracle.fields]
OF_MODEL = (*_OF_MODEL_ALONE, _RESUMED, BETWEEN_PROCESSES)
"""Oracles that read all components of model and task."""


def oracles_of(field: str, quick: bool = False) -> Sequence[str]:
    """The oracles that read the component of a field; with `quick`, those of a first look."""
    readers = [name for name, oracle in ORACLES.items() if field in oracle.fields]
    if readers and field not in _IN_MODEL:
        return readers
    return [*readers, *(QUICK if quick else OF_MODEL)]


def between_processes(subject: Subject, work: Mapping[str, Any]) -> Comparison:
    """Another process computes the same gradients of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.npz"
        again = pickle.dumps({**work, "oracles": [], "gradients": path})
        with child_process("transformer_jax.lab.verification.oracles", again, folder) as process:
            process.wait()
        if process.returncode:
            raise RuntimeError(describe_end(process, folder))
        return Comparison.of_trees({**np.load(path)}, named_leaves(subject.gradients))


def main() -> None:
    """Runs the work on stdin, a pickled dictionary, and writes one outcome a line to stdout.

    "modules" are loaded, "cells" are pickled components ({(field, name): (entry, options)}) and the
    table of parameters, "config" is the shrunk config, "oracles" are names. The gradients of one
    device are written to the file "gradients", if there is any.
    """
    outcomes = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what user code prints is no outcome
    work = pickle.load(sys.stdin.buffer)
    end_with_parent()
    use_compilation_cache()
    load_modules(work["modules"])
    if work["cells"]:
        components, PARAMETERS[:] = pickle.loads(work["cells"])
        for (field, name), (entry, options) in components.items():
            CHOICES[field].register(name, entry, options=options)
    # The caller has refused what a stranger's config would start.
    subject = Subject(read_settings(work["config"], {}, COMMAND))
    oracles = {**ORACLES, BETWEEN_PROCESSES: Oracle(partial(between_processes, work=work))}
    for name in work["oracles"]:
        outcome = run_oracle(name, partial(oracles[name].compare, subject))
        print(json.dumps(dataclasses.asdict(outcome)), file=outcomes, flush=True)
    if "gradients" in work:
        np.savez(work["gradients"], **named_leaves(subject.gradients))


if __name__ == "__main__":
    main()
