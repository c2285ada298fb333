# SPDX-License-Identifier: Apache-2.0
"""Trials of a search as rows of a sweep: what a definition asks for, and the table of the result.

Everything that can be checked before a trial is trained is checked here.
"""

import importlib.util
import math
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import UserError, install_hint
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.halving import rung_steps
from transformer_jax.lab.sweeps.search import METHODS, Search, Trial
from transformer_jax.lab.sweeps.space import Space, grid_size, read_space
from transformer_jax.lab.sweeps.tables import Row
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


def search_of(sweep: Sweep, overrides: Mapping[str, Any]) -> Search:
    """The search that a sweep defines.

    Raises:
      UserError: a field or a value of the space, or a trial that is known beforehand, is invalid;
        halving has rungs without an evaluation; a package is missing.
    """
    space = read_space(sweep.space, "space")
    shared = {**sweep.base, **overrides}
    for name in space:
        if name in _NOT_SEARCHED:
            raise UserError(f"space: config.{name} cannot be searched; {_NOT_SEARCHED[name]}")
        if name in shared:
            raise UserError(f"space: config.{name} is searched, and set for all trials; drop one")
    _check_values(sweep, shared, space)
    settings = resolve_file(sweep.config, shared)
    factor = sweep.halving.get("factor", 3)
    search = Search(
        space=space,
        method=sweep.search,
        limit=_limit(sweep, space),
        seed=sweep.search_seed,
        rungs=_rungs(sweep, settings, factor),
        factor=factor,
        fixed={"goal": goal_of(sweep, settings), "seeds": sweep.seeds, **_fixed(sweep, shared)},
    )
    for values in _known_trials(search):
        trial_config(sweep, overrides, values)
    return search


def trial_config(sweep: Sweep, overrides: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """The settings of a trial; UserError if its values do not go together."""
    try:
        return resolve_file(sweep.config, {**sweep.base, **overrides, **values})
    except UserError as error:
        raise UserError(f"trial with {_shown(values)}: {error}") from error


def goal_of(sweep: Sweep, settings: Settings) -> str:
    """The metric by which trials are compared, with "-" before it if lower is better."""
    return sweep.goal or selection_metric(settings, build.build_untokenized_task(settings))


def score_of(row: Row, goal: str) -> float:
    """Score of a trial: the mean over its seeds, higher is better; -inf if one has diverged."""
    name = goal.removeprefix("-")
    values = [math.nan if value is None else value for value in row.metrics[name]]
    mean = sum(values) / len(values)
    if not math.isfinite(mean):
        return -math.inf
    return mean if name == goal else -mean


def _check_values(sweep: Sweep, shared: Mapping[str, Any], space: Space) -> None:
    """Raises UserError unless the base config accepts each list and the ends of each interval."""
    for name, values in space.items():
        for value in values.ends():
            try:
                resolve_file(sweep.config, {**shared, name: value})
            except UserError as error:
                raise UserError(f"space: config.{name}={value}: {error}") from error


def _limit(sweep: Sweep, space: Space) -> int:
    """The number of trials."""
    size = grid_size(space)
    if sweep.search == "grid" and size is None:
        endless = [name for name, values in space.items() if values.size is None]
        raise UserError(f"space: search 'grid' needs a list of values of config.{endless[0]}")
    if size is not None and (sweep.trials or 0) > size:
        raise UserError(f"trials is {sweep.trials}, but the space has {size} combinations")
    return sweep.trials or size or 0


def _rungs(sweep: Sweep, settings: Settings, factor: int) -> tuple[int, ...]:
    """Steps of the rungs; without halving the full length alone."""
    num_steps = settings.train.num_steps
    every = settings.eval.every_steps
    if not sweep.halving:
        return (num_steps,)
    first = sweep.halving["first"]
    if settings.train.scale_to_data:
        raise UserError("halving: set train.scale_to_data to false; rungs are numbers of steps")
    if first % every:
        raise UserError(
            f"halving: first is {first}, and config.eval.every_steps is {every}; trials pause "
            "where they are evaluated, so give a multiple of it"
        )
    rungs = rung_steps(first, factor, num_steps)
    if len(rungs) == 1:
        raise UserError(
            f"halving: first is {first}, too near to config.train.num_steps {num_steps} to save "
            "anything; lower it"
        )
    return tuple(rungs)


def _fixed(sweep: Sweep, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all trials share and that change what they learn."""
    values = resolve_file(sweep.config, shared).values
    return {
        f"config.{name}": value
        for name, value in values.items()
        if name.partition(".")[0] in FIXED and name not in CHANGEABLE and name not in sweep.space
    }


def _known_trials(search: Search) -> Iterator[dict[str, Any]]:
    """Values of the trials that do not depend on the results of others; else of the first."""
    if search.method == "optuna" and importlib.util.find_spec("optuna") is None:
        raise UserError(f"search 'optuna' needs a package; {install_hint('search')}")
    count = 1 if search.method == "optuna" else search.limit
    for number in range(count):
        yield METHODS[search.method](search, [Trial({})] * number)  # only their number matters


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short_repr(value)}" for name, value in values.items())
