# SPDX-License-Identifier: Apache-2.0
"""The oracles by name, and the process that runs them.

    python -m transformer_jax.lab.verification.oracles < WORK > OUTCOMES

`verify` starts the process on the CPU, with two forced host devices.
"""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.lab.verification import forward_oracles, stored_oracles, training_oracles
from transformer_jax.lab.verification.outcomes import Comparison, compare_trees, run_oracle
from transformer_jax.lab.verification.subject import Subject
from transformer_jax.nn.parameters import PARAMETERS
from transformer_jax.parallel.sharding import AXIS_NAMES, DATA
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import CHOICES, Origin
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
    "bfloat16 near float32": forward_oracles.bfloat16,
    "accumulated = one batch": training_oracles.accumulated,
    "scanned = unrolled": training_oracles.scanned,
    "remat full = none": partial(training_oracles.rematerialized, remat="full"),
    "remat dots = none": partial(training_oracles.rematerialized, remat="dots"),
    "built again = the same": training_oracles.repeated,
    "resumed = uninterrupted": training_oracles.resumed,
    "seeds together = apart": training_oracles.seeds,
    "exported = imported": stored_oracles.exported,
    "data read again = the same": stored_oracles.data,
    **DEVICE_ORACLES,
}
"""Each compares two computations that must give the same; it raises DoesNotApplyError or UserError
where they have no meaning."""


def between_processes(subject: Subject, work: Mapping[str, Any]) -> Comparison:
    """Another process computes the same gradients of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradients.npz"
        done = subprocess.run(
            [sys.executable, "-m", "transformer_jax.lab.verification.oracles"],
            input=pickle.dumps({**work, "oracles": [], "gradients": path}),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(describe_end(done.returncode, done.stderr.decode()))
        return compare_trees({**np.load(path)}, named_leaves(subject.gradients))


def describe_end(status: int, errors: str) -> str:
    """Why a process of oracles has ended: the last line that it wrote to stderr."""
    last = (errors.strip() or "it wrote nothing").splitlines()[-1]
    return f"the process ended with status {status}: {last}"


def main() -> None:
    """Runs the work on stdin, a pickled dictionary, and writes one outcome a line to stdout.

    "modules" are loaded, "cells" are pickled components ({(field, name): (entry, options)}) and the
    table of parameters, "config" is the shrunk config, "oracles" are names. The gradients of one
    device are written to the file "gradients", if there is any.
    """
    outcomes = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what user code prints is no outcome
    work = pickle.load(sys.stdin.buffer)
    use_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    load_modules(work["modules"])
    if work["cells"]:
        components, PARAMETERS[:] = pickle.loads(work["cells"])
        for (field, name), (entry, options) in components.items():
            CHOICES[field].register(name, entry, options=options)
    subject = Subject(read_settings(work["config"], {}, Origin("loaded run", "the shrunk config")))
    between: Oracle = partial(between_processes, work=work)
    oracles = {**ORACLES, BETWEEN_PROCESSES: between}
    for name in work["oracles"]:
        outcome = run_oracle(name, partial(oracles[name], subject))
        print(json.dumps(dataclasses.asdict(outcome)), file=outcomes, flush=True)
    if "gradients" in work:
        np.savez(work["gradients"], **named_leaves(subject.gradients))


if __name__ == "__main__":
    main()
