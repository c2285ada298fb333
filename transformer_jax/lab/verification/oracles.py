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
from typing import Any

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

type Oracle = Callable[[Subject], Comparison]

DEVICE_ORACLES: Mapping[str, Oracle] = {
    "pmap = one device": partial(training_oracles.divided, engine="pmap", axis=DATA),
    **{
        f"{axis} axis = one device": partial(training_oracles.divided, engine="jit", axis=axis)
        for axis in AXIS_NAMES
    },
}
ORACLES: Mapping[str, Oracle] = {
    "packed = padded": forward_oracles.packed,
    "cached = full": forward_oracles.cached,
    "causal": forward_oracles.causal,
    "float32 near float64": forward_oracles.exact,
    "bfloat16 near float32": forward_oracles.bfloat16,
    "accumulated = one batch": training_oracles.accumulated,
    "scanned = unrolled": training_oracles.scanned,
    "remat full = none": partial(training_oracles.rematerialized, remat="full"),
    "remat dots = none": partial(training_oracles.rematerialized, remat="dots"),
    "draws by the key": training_oracles.randomness,
    "built again = the same": training_oracles.repeated,
    "resumed = uninterrupted": training_oracles.resumed,
    "seeds together = apart": training_oracles.seeds,
    "exported = imported": training_oracles.exported,
    **DEVICE_ORACLES,
    "data read again = the same": training_oracles.data,
    "predictions: alone = together": component_oracles.predicted,
    "loss of states = of logits": component_oracles.lost,
    "tokenizer: text = text": component_oracles.tokenized,
    "search: alone = in a batch": component_oracles.searched,
    "metric: any order": component_oracles.scored,
    "schedule: compiled = not": component_oracles.scheduled,
    "optimizer: stacked = single": component_oracles.updated,
    "kernel = plain": component_oracles.fused,
    "callbacks: resumed = uninterrupted": component_oracles.continued,
}
"""Each compares two computations that must give the same; it raises DoesNotApplyError or UserError
where they have no meaning."""
QUICK = (
    "packed = padded",
    "cached = full",
    "causal",
    "float32 near float64",
    "accumulated = one batch",
)
"""Oracles of the model for a first look, besides those of the component's own kind."""

_RESUMED = "resumed = uninterrupted"
OF_CALLBACKS = "callbacks: resumed = uninterrupted"
OF_COMPONENTS: Mapping[str, Sequence[str]] = {
    "data read again = the same": ("task.name", "data.name"),
    "predictions: alone = together": ("task.name",),
    "loss of states = of logits": ("train.loss",),
    "tokenizer: text = text": ("tokenizer.kind",),
    "search: alone = in a batch": ("decode.search", "decode.constraint"),
    "metric: any order": ("task.metric",),
    "optimizer: stacked = single": ("optimizer.name", "optimizer.transforms"),
    "schedule: compiled = not": ("optimizer.schedule",),
    _RESUMED: ("optimizer.name", "optimizer.transforms", "optimizer.schedule"),
    "kernel = plain": ("model.attention",),
    OF_CALLBACKS: ("train.callbacks", "logging.trackers"),
}
"""Oracles of single components -> the fields that name these."""
_IN_MODEL = ("task.name", "train.loss")
"""Fields of `OF_COMPONENTS` whose components are part of the model or the task, as those of fields
that it does not name."""
_OF_MODEL_ALONE = [name for name in ORACLES if name not in OF_COMPONENTS]
OF_MODEL = (*_OF_MODEL_ALONE, _RESUMED, BETWEEN_PROCESSES)
"""Oracles that read all components of model and task."""


def oracles_of(field: str, quick: bool = False) -> Sequence[str]:
    """The oracles that read the component of a field; with `quick`, those of a first look."""
    own = [name for name, fields in OF_COMPONENTS.items() if field in fields]
    if own and field not in _IN_MODEL:
        return own
    return [*own, *(QUICK if quick else OF_MODEL)]


def between_processes(subject: Subject, work: Mapping[str, Any]) -> Comparison:
    """Another process computes the same gradients of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.npz"
        errors = Path(folder) / "stderr"
        again = pickle.dumps({**work, "oracles": [], "gradients": path})
        with child_process("transformer_jax.lab.verification.oracles", again, errors) as process:
            status = process.wait()
        if status:
            raise RuntimeError(describe_end(status, errors.read_text(errors="replace")))
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
    between: Oracle = partial(between_processes, work=work)
    oracles = {**ORACLES, BETWEEN_PROCESSES: between}
    for name in work["oracles"]:
        outcome = run_oracle(name, partial(oracles[name], subject))
        print(json.dumps(dataclasses.asdict(outcome)), file=outcomes, flush=True)
    if "gradients" in work:
        np.savez(work["gradients"], **named_leaves(subject.gradients))


if __name__ == "__main__":
    main()
