# SPDX-License-Identifier: Apache-2.0
"""Searches: what a definition with a space asks for, its trials as rows, and their ranking.

Trials of a grid, or drawn at random, are known beforehand and train like other rows. Trials that
depend on the scores of others, by optuna or halving, belong to a study (`sweeps.study`).
"""

import dataclasses
import importlib.util
import math
from collections.abc import Iterable, Mapping
from typing import Any

from transformer_jax.errors import UserError, install_hint
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.space import Space, grid_point, grid_size, random_point, read_space
from transformer_jax.lab.sweeps.tables import Row, Rows
from transformer_jax.ranges import short_repr
from transformer_jax.runs import build
from transformer_jax.runs.config import CHANGEABLE, FIXED, Settings, resolve_file
from transformer_jax.runs.train import selection_metric

_NOT_SEARCHED = {
    "seed": "set the number of seeds instead",
    "train.num_steps": "trials are compared after the same number of steps",
    "eval.every_steps": "trials are compared after the same number of steps",
    "train.scale_to_data": "trials are compared after the same number of steps",
}
"""Fields that a space cannot have -> the reason."""


@dataclasses.dataclass(frozen=True)
class Search:
    """Definition of a search.

    Attributes:
      space: the values to try.
      method: "grid", "random" or "optuna".
      limit: number of trials.
      seed: seed of the method.
      rungs: numbers of steps after which a trial may end; the last is the full length.
      factor: 1/factor of the trials at a rung continue.
      goal: the metric that decides, with "-" before it if lower is better.
      fixed: what must stay the same when a study is resumed, by its name for messages.
    """

    space: Space
    method: str
    limit: int
    seed: int = 0
    rungs: tuple[int, ...] = (1,)
    factor: int = 3
    goal: str = "-loss"
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def uses_study(self) -> bool:
        """Returns True if trials depend on the scores of others."""
        return self.method == "optuna" or len(self.rungs) > 1

    def drawn(self, number: int) -> dict[str, Any]:
        """Values of a trial of a grid or drawn at random, a function of its number alone."""
        if self.method == "grid":
            return grid_point(self.space, number)
        return random_point(self.space, self.seed, number)

    def score(self, row: Row) -> float:
        """Score of a trial: the mean over its seeds, higher is better; -inf if one has diverged."""
        name = self.goal.removeprefix("-")
        values = [math.nan if value is None else value for value in row.metrics.get(name, [None])]
        mean = sum(values) / len(values)
        if not math.isfinite(mean):
            return -math.inf
        return mean if name == self.goal else -mean

    def ranked(self, rows: Iterable[Row]) -> Rows:
        """Trials by their steps and score, the best first; those that diverged last."""

        def key(row: Row) -> tuple[bool, int, float]:
            score = self.score(row)
            return math.isfinite(score), row.steps or 0, score

        return Rows(sorted(rows, key=key, reverse=True))


def search_of(sweep: Sweep, overrides: Mapping[str, Any]) -> Search:
    """The search that a sweep defines.

    Raises:
      UserError: a field or a value of the space, or a trial that is known beforehand, is invalid;
        halving has rungs without an evaluation; a package is missing.
    """
    space = read_space(sweep.space, "space")
    shared = {**sweep.base, **overrides}
    for name, choices in space.items():
        if name in _NOT_SEARCHED:
            raise UserError(f"space: config.{name} cannot be searched; {_NOT_SEARCHED[name]}")
        if name in shared:
            raise UserError(f"space: config.{name} is searched, and set for all trials; drop one")
        for value in choices.ends():
            try:
                resolve_file(sweep.config, {**shared, name: value})
            except UserError as error:
                raise UserError(f"space: config.{name}={value}: {error}") from error
    settings = resolve_file(sweep.config, shared)
    factor = sweep.halving.get("factor", 3)
    rungs = _rungs(sweep, settings, factor)
    goal = sweep.goal or selection_metric(settings, build.build_untokenized_task(settings))
    fixed = {
        "space": sweep.space,
        "search": sweep.search,
        "search_seed": sweep.search_seed,
        "rungs": rungs,
        "factor": factor,
        "goal": goal,
        "seeds": sweep.seeds,
        **_fixed_fields(sweep, settings),
    }
    search = Search(
        space, sweep.search, _limit(sweep, space), sweep.search_seed, rungs, factor, goal, fixed
    )
    if search.uses_study and importlib.util.find_spec("optuna") is None:
        name = "halving" if sweep.halving else "search 'optuna'"
        raise UserError(f"{name} needs a package; {install_hint('search')}")
    if search.method != "optuna":  # whose values depend on scores
        for number in range(search.limit):
            trial_config(sweep, overrides, search.drawn(number))
    return search


def trial_config(sweep: Sweep, overrides: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """The settings of a trial; UserError if its values do not go together."""
    try:
        return resolve_file(sweep.config, {**sweep.base, **overrides, **values})
    except UserError as error:
        shown = ", ".join(f"{name}={short_repr(value)}" for name, value in values.items())
        raise UserError(f"trial with {shown}: {error}") from error


def row_name(trial: int) -> str:
    """Name of a trial in tables; its folder has this name too."""
    return f"trial {trial}"


def _limit(sweep: Sweep, space: Space) -> int:
    """The number of trials."""
    size = grid_size(space)
    if sweep.search == "grid" and size is None:
        endless = [name for name, choices in space.items() if choices.values is None]
        raise UserError(f"space: search 'grid' needs a list of values of config.{endless[0]}")
    if size is not None and (sweep.trials or 0) > size:
        raise UserError(f"trials is {sweep.trials}, but the space has {size} combinations")
    return sweep.trials or size or 0


def _rungs(sweep: Sweep, settings: Settings, factor: int) -> tuple[int, ...]:
    """Steps of the rungs, first, first * factor, ..., num_steps; without halving the last alone."""
    num_steps = settings.train.num_steps
    if not sweep.halving:
        return (num_steps,)
    first = sweep.halving["first"]
    if settings.train.scale_to_data:
        raise UserError("halving: set train.scale_to_data to false; rungs are numbers of steps")
    if first % settings.eval.every_steps:
        raise UserError(
            f"halving: first is {first}, and config.eval.every_steps is "
            f"{settings.eval.every_steps}; trials are compared where they are evaluated, so give a "
            "multiple of it"
        )
    rungs = []
    steps = first
    while steps * math.sqrt(factor) <= num_steps:  # a rung near the end would save nothing
        rungs.append(steps)
        steps *= factor
    if not rungs:
        raise UserError(
            f"halving: first is {first}, too near to config.train.num_steps {num_steps} to save "
            "anything; lower it"
        )
    return (*rungs, num_steps)


def _fixed_fields(sweep: Sweep, settings: Settings) -> dict[str, Any]:
    """The fields that all trials share and that change what they learn."""
    return {
        f"config.{name}": value
        for name, value in settings.values.items()
        if name.partition(".")[0] in FIXED and name not in CHANGEABLE and name not in sweep.space
    }
