# SPDX-License-Identifier: Apache-2.0
"""Search: trials of values from a space, each trained to one rung of steps after another.

All decisions of a search are entries of a log, in the order in which they were made:

    {"search": {...}}                            the definition
    {"limit": 20}                                the number of trials; it may grow
    {"ask": 0, "values": {"field": value}}       a trial begins to train, to the first rung
    {"tell": 0, "rung": 0, "score": -2.1}        it has reached a rung; the score is null if it
                                                 diverged
    {"promote": 0, "rung": 1}                    it resumes, to the next rung

Each decision is a function of the entries before it alone. So any number of processes append to one
log, whichever is free, and a replay makes the same decisions.
"""

import dataclasses
import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import BusyError, UserError
from transformer_jax.lab.sweeps.halving import Job, last_promotion, next_promotion, ranking
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.lab.sweeps.space import Choices, Space, grid_point, random_point, space_of
from transformer_jax.ranges import short_repr
from transformer_jax.runtime import processes
from transformer_jax.runtime.files import parse_json

_POLL_SECONDS = 2.0  # between looks at trials that other processes train

logger = logging.getLogger(__name__)

Entry = dict[str, Any]
"""An entry of the log."""


@dataclasses.dataclass(frozen=True)
class Search:
    """Definition of a search.

    Attributes:
      space: the values to try.
      method: a key of `METHODS`.
      limit: number of trials.
      seed: seed of the method.
      rungs: numbers of steps after which a trial pauses; the last is the full length.
      factor: 1/factor of the trials at a rung are promoted.
      fixed: what else must stay the same when a search is resumed, by its name for messages.
    """

    space: Space
    method: str
    limit: int
    seed: int = 0
    rungs: tuple[int, ...] = (1,)
    factor: int = 3
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """The definition without the number of trials."""
        return {
            "space": {name: values.as_data() for name, values in self.space.items()},
            "search": self.method,
            "search_seed": self.seed,
            "rungs": list(self.rungs),
            "factor": self.factor,
            **self.fixed,
        }


@dataclasses.dataclass
class Trial:
    """A trial so far.

    Attributes:
      values: {"section.field": value}.
      scores: score at each rung that it has reached, -inf if it diverged there.
    """

    values: Mapping[str, Any]
    scores: list[float] = dataclasses.field(default_factory=list)


class SearchState:
    """State of a search after the entries of its log.

    Attributes:
      trials: all that began.
      limit: number of trials that may begin.
      open: jobs that train, or that a killed process has left.
    """

    def __init__(self, search: Search, entries: Sequence[Entry] = ()) -> None:
        self.search = search
        self.trials: list[Trial] = []
        self.limit = 0
        self.open: list[Job] = []
        self._rungs: list[dict[int, float]] = [{} for _ in search.rungs]
        self._started: list[set[int]] = [set() for _ in search.rungs]
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Adds an entry; ValueError, TypeError or IndexError if it cannot follow the others."""
        match entry:
            case {"limit": int(limit)}:
                self.limit = limit
            case {"ask": int(trial), "values": dict(values)} if trial == len(self.trials):
                if values.keys() != self.search.space.keys():
                    raise ValueError("other fields")
                self.trials.append(Trial(values))
                self._start(Job(trial, 0))
            case {"promote": int(trial), "rung": int(rung)} if self._has_reached(trial, rung - 1):
                self._start(Job(trial, rung))
            case {"tell": int(trial), "rung": int(rung), "score": int() | float() | None as score}:
                self.open.remove(Job(trial, rung))
                value = -math.inf if score is None else float(score)
                self._rungs[rung][trial] = value
                self.trials[trial].scores.append(value)
            case _:
                raise ValueError("no such entry")

    def _has_reached(self, trial: int, rung: int) -> bool:
        return 0 <= rung < len(self._rungs) and trial in self._rungs[rung]

    def _start(self, job: Job) -> None:
        self.open.append(job)
        self._started[job.rung].add(job.trial)

    def decide(self) -> Entry | None:
        """The next decision; None if none can be made before a trial has trained."""
        job = next_promotion(self._rungs, self._started, self.search.factor)
        if job is None and len(self.trials) < self.limit:
            values = METHODS[self.search.method](self.search, self.trials)
            return {"ask": len(self.trials), "values": values}
        if job is None and not self.open:
            job = last_promotion(self._rungs, self._started)
        return {"promote": job.trial, "rung": job.rung} if job else None

    def ranking(self) -> list[int]:
        """Trials that reached a rung, by rung and score, the best first; diverged ones last."""
        order = [trial for scores in reversed(self._rungs) for trial in ranking(scores)]
        lost = [number for number, trial in enumerate(self.trials) if trial.scores]
        return list(dict.fromkeys([*order, *lost]))

    def steps_trained(self) -> int:
        """Steps of all trials together up to the rungs that they have reached."""
        steps = [0, *self.search.rungs]
        return sum(steps[len(trial.scores)] for trial in self.trials)


def _grid(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    """The combination after those of the other trials, in the order of the space."""
    return grid_point(search.space, len(trials))


def _random(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    """Values that depend on seed and number of the trial alone."""
    return random_point(search.space, search.seed, len(trials))


def _optuna(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    """Values that optuna's TPE sampler suggests after the trials so far.

    A new study gets all trials each time, and its seed is the number of the trial, so that its
    state is a function of the log. Trials that have not reached the last rung count as pruned.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, values in search.space.items():
        if isinstance(values, Choices):
            distributions[name] = optuna.distributions.CategoricalDistribution(values.values)
        elif values.is_integer:
            distributions[name] = optuna.distributions.IntDistribution(
                int(values.low), int(values.high), values.log
            )
        else:
            distributions[name] = optuna.distributions.FloatDistribution(
                values.low, values.high, values.log
            )
    # constant_liar: trials that still train count as bad ones, so that others are not like them.
    sampler = optuna.samplers.TPESampler(seed=search.seed + len(trials), constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    states = optuna.trial.TrialState
    for trial in trials:
        reached = dict(zip(search.rungs, trial.scores, strict=False))
        scores = {steps: score for steps, score in reached.items() if math.isfinite(score)}
        is_whole = len(scores) == len(search.rungs)
        state = states.COMPLETE if is_whole else states.PRUNED if reached else states.RUNNING
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=trial.scores[-1] if is_whole else None,
                params=dict(trial.values),
                distributions=distributions,
                intermediate_values=scores,
            )
        )
    suggested = study.ask(distributions).params
    return {
        name: suggested[name] if isinstance(values, Choices) else values.rounded(suggested[name])
        for name, values in search.space.items()
    }


METHODS: Mapping[str, Callable[[Search, Sequence[Trial]], dict[str, Any]]] = {
    "grid": _grid,
    "random": _random,
    "optuna": _optuna,
}
"""Methods of a search: the values of the next trial, as a function of those before it."""


class DecisionLog:
    """The log of a search in its folder.

    Args:
      folder: the sweep's folder.
      search: the definition; it begins the log if there is none.

    Attributes:
      state: of the search after the entries that were read.

    Raises:
      UserError: the folder holds another search. From `read` too: an entry is damaged.
    """

    def __init__(self, folder: SweepFolder, search: Search) -> None:
        self._folder = folder
        self._number = 1  # of the next entry; 0 is the definition
        self._by = processes.describe_process()
        self.state = SearchState(search)
        self._begin(search)
        while self.read().limit < search.limit:
            self.append({"limit": search.limit})
        if self.state.limit > search.limit:
            raise UserError(
                f"{folder} holds a search with {self.state.limit} trials; set trials to this, or "
                "to more"
            )

    def _begin(self, search: Search) -> None:
        """Writes the definition as the first entry, or compares it with the one that is there."""
        definition = search.as_data()
        if self._folder.entry(0) is None:
            self._folder.add_entry(0, self._encoded({"search": definition}))
        before = _read_entry(self._folder, 0).get("search", {})
        for name, value in definition.items():
            if before.get(name) != value:
                raise UserError(
                    f"{self._folder} holds another search: its {name} is "
                    f"{short_repr(before.get(name))}, the sweep's is {short_repr(value)}; choose "
                    "another --workdir or the same value"
                )

    def read(self) -> SearchState:
        """The state after all entries, those of other processes too."""
        while True:
            entry = _read_entry(self._folder, self._number)
            if not entry:
                return self.state
            _add(self.state, entry, self._folder, self._number)
            self._number += 1

    def append(self, entry: Entry) -> bool:
        """Appends an entry after those that were read; False if another process was faster."""
        return self._folder.add_entry(self._number, self._encoded(entry))

    def tell(self, job: Job, score: float) -> None:
        """Appends the score of a job, unless another process has."""
        value = score if math.isfinite(score) else None
        entry = {"tell": job.trial, "rung": job.rung, "score": value}
        while job in self.read().open and not self.append(entry):
            pass

    def _encoded(self, entry: Entry) -> str:
        return json.dumps({**entry, "by": self._by})


def _read_entry(folder: SweepFolder, number: int) -> Entry:
    """An entry of the log; empty if there is none. UserError if it is damaged."""
    content = folder.entry(number)
    try:
        entry = {} if content is None else parse_json(content)
        if not isinstance(entry, dict) or (content is not None and not entry):
            raise ValueError("it is no object")
        return entry
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, number) from error


def _add(state: SearchState, entry: Entry, folder: SweepFolder, number: int) -> None:
    try:
        state.add(entry)
    except (ValueError, TypeError, IndexError) as error:
        raise _damaged(folder, number) from error


def _damaged(folder: SweepFolder, number: int) -> UserError:
    return UserError(
        f"{folder}: entry {number} of the log of decisions is damaged; choose another --workdir"
    )


def run_trials(
    log: DecisionLog, folder: SweepFolder, train: Callable[[Job, Trial, Path], float]
) -> Iterator[None]:
    """Trains trials until the search ends; yields after each job.

    Jobs that a killed process has left are taken over before new decisions are made.

    Args:
      folder: in which each trial has a row's folder.
      train: (job, trial, folder) -> score, higher is better; -inf if it diverged.
    """
    is_waiting = False
    while True:
        for job in list(log.read().open):
            try:
                with folder.claim(row_name(job.trial)) as place:
                    if job not in log.read().open:  # finished meanwhile
                        continue
                    score = train(job, log.state.trials[job.trial], place)
            except BusyError:
                continue
            log.tell(job, score)  # after the folder is complete, in a bucket too
            yield
            break
        else:
            decision = log.state.decide()
            if decision:
                log.append(decision)  # if another process was faster, `read` has its entry
            elif not log.state.open:
                return
            else:
                if not is_waiting:
                    names = ", ".join(row_name(job.trial) for job in log.state.open)
                    logger.info("waiting for other processes, which train %s", names)
                is_waiting = True
                time.sleep(_POLL_SECONDS)


def row_name(trial: int) -> str:
    """Name of a trial in tables; its folder has this name too."""
    return f"trial {trial}"


def replay(folder: SweepFolder) -> Iterator[tuple[Entry, SearchState]]:
    """Makes the decisions of a search again; yields each entry of its log, and the state after it.

    Raises:
      UserError: the folder holds no search, an entry is damaged, or a decision differs.
    """
    definition = _read_entry(folder, 0)
    if not definition:
        raise UserError(f"{folder} holds no search: it has no log of decisions")
    state = SearchState(_definition(definition, folder))
    for number in itertools.count(1):
        entry = _read_entry(folder, number)
        if not entry:
            return
        if "ask" in entry or "promote" in entry:
            logged = {key: value for key, value in entry.items() if key != "by"}
            decision = state.decide()
            if decision != logged:
                raise UserError(
                    f"{folder}: entry {number} of the log is {short_repr(logged)}, and a replay "
                    f"decides {short_repr(decision)}"
                )
        _add(state, entry, folder, number)
        yield entry, state


def _definition(entry: Entry, folder: SweepFolder) -> Search:
    try:
        data = dict(entry["search"])
        if data["search"] not in METHODS:
            raise ValueError("no such method")
        return Search(
            space=space_of(data["space"]),
            method=data["search"],
            limit=0,
            seed=data["search_seed"],
            rungs=tuple(data["rungs"]),
            factor=data["factor"],
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _damaged(folder, 0) from error


def describe(entry: Entry, state: SearchState) -> str:
    """An entry of the log as a line of text."""
    steps = state.search.rungs
    match entry:
        case {"ask": trial, "values": values}:
            shown = ", ".join(f"{name}={value}" for name, value in values.items())
            return f"{row_name(trial)} begins: {shown}"
        case {"promote": trial, "rung": rung}:
            return f"{row_name(trial)} resumes to step {steps[rung]}"
        case {"tell": trial, "rung": rung, "score": None}:
            return f"{row_name(trial)} diverged before step {steps[rung]}"
        case {"tell": trial, "rung": rung, "score": score}:
            return f"{row_name(trial)} has score {score:.6g} at step {steps[rung]}"
    return f"{state.limit} trials"
