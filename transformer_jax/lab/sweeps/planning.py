# SPDX-License-Identifier: Apache-2.0
"""Plan of a sweep: the cost of its rows, what is finished, and what remains; nothing is trained."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.buckets.bucket import NotInBucketError
from transformer_jax.lab.plan.program import AbstractTraining, memory_of
from transformer_jax.lab.plan.report import with_unit
from transformer_jax.lab.plan.target import GIB
from transformer_jax.lab.report import shown_name
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.results import readable_folder, seed_records
from transformer_jax.lab.sweeps.row_training import RowSpec, check_row, plan_row, row_data
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.nn.layers import count_parameters
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runtime.platform import use_compilation_cache
from transformer_jax.runtime.progress import Progress, shown
from transformer_jax.summary import aligned

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RowCost:
    """Cost of a row.

    Attributes:
      memory: bytes that a training step of one seed needs on a device of this machine.
      flops: of the model's matrix products in a step of one seed.
      tokens: most tokens that the model reads in a step of one seed, padding included.
      seeds, finished: that the sweep asks for, and that are measured.
      steps, steps_left: of all seeds together, and those that are not trained yet.
      seconds: time that the finished seeds took.
    """

    name: str
    parameters: int
    memory: int
    flops: int
    tokens: int
    seeds: int
    finished: int
    steps: int
    steps_left: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """Costs of the rows of a sweep."""

    rows: Sequence[RowCost]

    def seconds_left(self, rows: Sequence[RowCost]) -> float | None:
        """Estimated time of what remains of rows, by the FLOPs per second of the finished seeds;
        None if no seed is finished."""
        left = sum(row.flops * row.steps_left for row in rows)
        if not left:
            return 0.0
        flops = sum(row.flops * row.steps * row.finished / row.seeds for row in self.rows)
        seconds = sum(row.seconds for row in self.rows)
        return left * seconds / flops if flops and seconds else None

    def as_text(self) -> str:
        """A table for a terminal, with a line for the whole sweep."""
        head = ["", "parameters", "memory of a seed", "FLOPs of a step", "seeds finished"]
        lines = [[*head, "steps left", "tokens left", "FLOPs left", "time left"]]
        for row in self.rows:
            sizes = [f"{row.parameters:,}", f"{row.memory / GIB:.2f} GiB", with_unit(row.flops)]
            finished = f"{row.finished} of {row.seeds}"
            steps = f"{row.steps_left:,} of {row.steps:,}"
            lines.append([shown_name(row.name), *sizes, finished, steps, *self._left([row])])
        finished = f"{sum(r.finished for r in self.rows)} of {sum(r.seeds for r in self.rows)}"
        steps = f"{sum(r.steps_left for r in self.rows):,}"
        lines.append(["all", "", "", "", finished, steps, *self._left(self.rows)])
        note = (
            "Tokens are at most these, with padding. Times are estimated from the finished seeds, "
            "in proportion to FLOPs; ? if none is finished."
        )
        return "\n".join([*aligned(lines), note])

    def _left(self, rows: Sequence[RowCost]) -> list[str]:
        """The tokens, FLOPs and time that are left of rows."""
        tokens = sum(row.tokens * row.steps_left for row in rows)
        flops = sum(row.flops * row.steps_left for row in rows)
        return [with_unit(tokens), with_unit(flops), _duration(self.seconds_left(rows))]


def plan_sweep(
    sweep: Sweep,
    workdir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    chosen: str = "",
    modules: Modules = (),
) -> SweepPlan:
    """Computes the cost of each row on the devices of this machine; trains and writes nothing.

    Arguments are those of `run_sweep`; without a workdir nothing counts as finished.

    Raises:
      UserError: a config or a module is invalid, or its model cannot be built here.
    """
    load_modules(modules, workdir)
    configs = sweep.with_base(overrides).configs(chosen)
    for name, settings in configs.items():
        check_row(sweep, name, settings)
    folder = Path(os.devnull)  # nothing is below it
    data: Mapping[str, Mapping[str, str]] = {}
    if workdir is not None:
        with contextlib.suppress(NotInBucketError):
            folder = readable_folder(workdir)
            data = row_data(configs)
    use_compilation_cache()
    rows = []
    with shown(), Progress(len(configs), unit="row") as compiled:
        for name, settings in configs.items():
            spec = RowSpec(name, settings, data=data.get(name, {}))
            rows.append(_plan_row(sweep, spec, folder / folder_name(name)))
            compiled.advance(len(rows))
            logger.info("row %d of %d: %s", len(rows), len(configs), name)
    return SweepPlan(rows)


def _plan_row(sweep: Sweep, spec: RowSpec, folder: Path) -> RowCost:
    training = AbstractTraining(spec.settings)
    _, memory = memory_of(training.compile())
    plan = plan_row(sweep, spec, folder)
    finished = sweep.seeds - len(plan.configs)
    records = seed_records(folder)
    length = spec.settings.train.num_steps
    # The records of finished seeds may be gone: their steps count as trained.
    steps = [records[seed][-1]["step"] if seed in records else 0 for seed in plan.configs]
    return RowCost(
        name=spec.name,
        parameters=count_parameters(training.state.params),
        memory=memory,
        flops=training.model_flops(),
        tokens=training.rows * sum(training.task.lengths[side] for side in training.task.read),
        seeds=sweep.seeds,
        finished=finished,
        steps=sweep.seeds * length,
        steps_left=sum(max(length - step, 0) for step in steps),
        seconds=plan.saved.first_seeds(finished).seconds if plan.saved else 0.0,
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds / 60:,.1f} min" if seconds < 2 * 3600 else f"{seconds / 3600:,.1f} h"
