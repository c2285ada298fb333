# SPDX-License-Identifier: Apache-2.0
"""A process that runs oracles: reads its work as JSON from stdin, writes one outcome a line.

    python -m transformer_jax.lab.verification.worker < work.json

The process has host devices, which its starter forces, and loads the user's modules again.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TextIO

import jax
import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.lab.verification.device_oracles import DEVICE_ORACLES
from transformer_jax.lab.verification.oracles import ORACLES
from transformer_jax.lab.verification.outcomes import Outcome, run_oracle
from transformer_jax.lab.verification.subject import Subject
from transformer_jax.runs.config import resolve
from transformer_jax.runs.settings import Origin
from transformer_jax.runs.user_modules import load_modules
from transformer_jax.runtime.platform import use_compilation_cache


def main() -> None:
    """Runs the oracles that stdin names."""
    results = _keep_stdout_for_results()
    work = json.load(sys.stdin)
    use_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    for outcome in run(work):
        print(json.dumps(dataclasses.asdict(outcome)), file=results, flush=True)


def run(work: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yields the outcomes of some oracles.

    Args:
      work: "modules": to load; "config": the shrunk config; "oracles": names; "gradients": the file
        to which the gradients of one device are written, or None.
    """
    load_modules(work["modules"])
    subject = Subject(resolve(work["config"], {}, (), Origin("config", "the shrunk config")))
    for name in work["oracles"]:
        oracle = {**ORACLES, **DEVICE_ORACLES}[name]
        yield run_oracle(name, partial(oracle, subject))
    if work["gradients"]:
        np.savez(work["gradients"], **named_leaves(subject.gradients))


def _keep_stdout_for_results() -> TextIO:
    """Sends what user code prints to stderr; returns the stream of outcomes."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return results


if __name__ == "__main__":
    main()
