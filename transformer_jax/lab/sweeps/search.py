# SPDX-License-Identifier: Apache-2.0
"""Searches: spaces of values, what a definition with a space asks for, and the ranking of trials.

A space is plain data: {"section.field": values}, where values are a list, or an interval
{"low": 1e-4, "high": 1e-2, "log": True}.

Trials of a grid, or drawn at random, are known beforehand and train like other rows. Trials that
depend on the scores of others, by optuna or halving, belong to a study (`sweeps.study`).
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from transformer_jax.errors import UserError, install_hint, user_errors
from transformer_jax.lab.report import with_nan
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.tables import Row, Rows
from transformer_jax.ranges import short_repr
from transformer_jax.runs import build
from transformer_jax.runs.config import CHANGEABLE, FIXED, parsed, resolve_file
from transformer_jax.runs.evaluate import selection_metric
from transformer_jax.runs.settings import Settings

_NOT_SEARCHED = {
    "seed": "set the number of seeds instead",
    "train.num_steps": "trials are compared after the same number of steps",
    "eval.every_steps": "trials are compared after the same number of steps",
    "train.scale_to_data": "trials are compared after the same number of steps",
}
"""Fields that a space cannot have -> the reason."""

_DIGITS = 4  # significant, of a number that is drawn; a command line stays readable
_SMALL_GRID = 10_000  # combinations, which are sorted once


@dataclasses.dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """The value at a quantile `u` in [0, 1)."""
        return self.values[int(u * len(self.values))]

    def suggested(self, name: str, trial: Any) -> Any:
        """The value that an optuna trial suggests for a field."""
        return trial.suggest_categorical(name, self.values)

    def ends(self) -> Sequence[Any]:
        """The values that a config must accept for it to accept all."""
        return self.values


@dataclasses.dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, or the integers among them if both are integers.

    Attributes:
      low, high: the ends, which are included.
      log: draw the logarithm uniformly.

    Raises:
      ValueError: the ends are no finite numbers in order, or have no logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if type(end) not in (int, float):
                raise ValueError(f"{short_repr(end)} is no number; give a list of values")
            if not math.isfinite(end):
                raise ValueError(f"{end} is no finite number")
        if self.low >= self.high:
            raise ValueError(f"'low' {self.low:g} is not below 'high' {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"'log' needs a 'low' above 0, and it is {self.low:g}")

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int)

    @property
    def values(self) -> Sequence[int] | None:
        """The integers; None if they are real numbers."""
        return range(int(self.low), int(self.high) + 1) if self.is_integer else None

    def at(self, u: float) -> float:
        low = self.low
        high = self.high + 1 if self.is_integer else self.high  # so that floor gives `high` too
        value = low * (high / low) ** u if self.log else low + u * (high - low)
        return self.rounded(math.floor(value) if self.is_integer else value)

    def suggested(self, name: str, trial: Any) -> float:
        suggest = trial.suggest_int if self.is_integer else trial.suggest_float
        return self.rounded(suggest(name, self.low, self.high, log=self.log))

    def rounded(self, value: float) -> float:
        """A number of few digits in the interval."""
        if not self.is_integer:
            value = float(f"{value:.{_DIGITS}g}")
        return min(max(value, self.low), self.high)

    def ends(self) -> Sequence[float]:
        return (self.low, self.high)


Values = Choices | Interval
Space = dict[str, Values]


def read_values(name: str, data: Any) -> Values:
    """Reads the values of a field in a space, and checks them against the type of the field.

    Raises:
      UserError: an unknown field (the nearest is named), a value of another type than its field's,
        or an interval without numbers between its ends.
    """
    if isinstance(data, Mapping):
        ends = {end: parsed({name: data[end]}, "space")[name] for end in data if end != "log"}
        try:
            return Interval(**{**data, **ends})
        except (TypeError, ValueError) as error:
            message = f"space: config.{name}: {error}; an interval has low, high and log"
            raise UserError(message) from error
    if not isinstance(data, list | tuple) or not data:
        raise UserError(
            f"space: config.{name} is {short_repr(data)}; give a list of values, or "
            "{'low': ..., 'high': ...}"
        )
    return Choices(tuple(parsed({name: value}, "space")[name] for value in data))


def grid_size(space: Space) -> int | None:
    """Number of combinations; None if there is an interval of real numbers."""
    size = 1
    for choices in space.values():
        if choices.values is None:
            return None
        size *= len(choices.values)
    return size


def grid_point(space: Space, number: int) -> dict[str, Any]:
    """A combination of values by its number; the last field changes fastest."""
    values = [choices.values for choices in space.values() if choices.values is not None]
    combination = next(itertools.islice(itertools.product(*values), number, None))
    return dict(zip(space, combination, strict=True))


@dataclasses.dataclass(frozen=True)
class Search:
    """Definition of a search.

    Attributes:
      method: one of `METHODS`.
      limit: number of trials.
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
        """Values of a trial of a grid or drawn at random, a function of its number alone.

        Combinations of a small grid are drawn without replacement. Python guarantees that
        `Random(text).random()` stays the same in later versions.
        """
        if self.method == "grid":
            return grid_point(self.space, number)
        if self._order:
            return grid_point(self.space, self._order[number % len(self._order)])
        quantiles = {name: Random(f"{self.seed} {number} {name}").random() for name in self.space}
        return {name: values.at(quantiles[name]) for name, values in self.space.items()}

    @functools.cached_property
    def _order(self) -> list[int]:
        """Numbers of the combinations of a small grid, drawn; empty if it is not small."""
        size = grid_size(self.space)
        if size is None or size > _SMALL_GRID:
            return []
        return sorted(range(size), key=lambda index: Random(f"{self.seed} {index}").random())

    def score(self, row: Row) -> float:
        """Score of a trial: the mean over its seeds, higher is better; -inf if one has diverged."""
        name = self.goal.removeprefix("-")
        values = with_nan(row.metrics.get(name, [None]))
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


def search_of(sweep: Sweep) -> Search:
    """The search that a sweep defines.

    Raises:
      UserError: a field or a value of the space, or a trial that is known beforehand, is invalid;
        halving has rungs without an evaluation; a package is missing.
    """
    space = {name: read_values(name, data) for name, data in sweep.space.items()}
    for name, choices in space.items():
        if name in _NOT_SEARCHED:
            raise UserError(f"space: config.{name} cannot be searched; {_NOT_SEARCHED[name]}")
        if name in sweep.base:
            raise UserError(f"space: config.{name} is searched, and set for all trials; drop one")
        for value in choices.ends():
            with user_errors(f"space: config.{name}={value}", kinds=UserError):
                resolve_file(sweep.config, {**sweep.base, name: value})
    settings = resolve_file(sweep.config, sweep.base)
    factor = sweep.halving.get("factor", 3)
    rungs = _rungs(sweep, settings, factor)
    goal = sweep.goal or selection_metric(settings, build.build_untokenized_task(settings))
    fixed = {name: getattr(sweep, name) for name in ("space", "search", "search_seed", "seeds")}
    fixed |= {"rungs": rungs, "factor": factor, "goal": goal}
    for name, value in settings.values.items():  # that all trials share and that change them
        if name.partition(".")[0] in FIXED and name not in CHANGEABLE and name not in sweep.space:
            fixed[f"config.{name}"] = value
    limit = _limit(sweep, space)
    search = Search(space, sweep.search, limit, sweep.search_seed, rungs, factor, goal, fixed)
    if search.uses_study and importlib.util.find_spec("optuna") is None:
        name = "halving" if sweep.halving else "search 'optuna'"
        raise UserError(f"{name} needs a package; {install_hint('search')}")
    if search.method != "optuna":  # whose values depend on scores
        for number in range(search.limit):
            trial_config(sweep, search.drawn(number))
    return search


def trial_config(sweep: Sweep, values: Mapping[str, Any]) -> Settings:
    """The settings of a trial; UserError if its values do not go together."""
    try:
        return resolve_file(sweep.config, {**sweep.base, **values})
    except UserError as error:
        shown = ", ".join(f"{name}={short_repr(value)}" for name, value in values.items())
        raise UserError(f"trial with {shown}: {error}") from error


def row_name(trial: int) -> str:
    """Name of a trial, in tables and of its folder."""
    return f"trial {trial}"


def _limit(sweep: Sweep, space: Space) -> int:
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
