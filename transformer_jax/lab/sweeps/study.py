# SPDX-License-Identifier: Apache-2.0
"""Trials as an optuna study, whose journal is in the sweep's folder; any number of processes work
on it.

A trial trains from one rung of steps to the next (successive halving, Li et al. 2020), or in full.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalStorage

from transformer_jax.buckets.bucket import Bucket, NotInBucketError
from transformer_jax.errors import BusyError, UserError
from transformer_jax.lab.sweeps.search import Search, row_name
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.ranges import short_repr
from transformer_jax.runs.workdir import JOURNAL

_DEFINITION = "search"

type TrainTrial = Callable[[int, Mapping[str, Any], int, Path], float]
"""(number of a trial, its values, steps, its folder) -> score after these steps, higher is better;
not finite if it diverged."""


class BucketJournal(BaseJournalBackend):
    """optuna's journal in a bucket, a file for each entry: of two processes, one creates it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._end = 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        number = log_number_from
        with contextlib.suppress(NotInBucketError):
            while True:
                yield json.loads(self._bucket.read(f"{JOURNAL}/{number}.json"))
                number += 1
                self._end = max(self._end, number)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            content = json.dumps(log).encode()
            while not self._bucket.create(f"{JOURNAL}/{self._end}.json", content):
                self._end += 1


def open_study(folder: SweepFolder, search: Search) -> optuna.Study:
    """The study in a sweep's folder, made if there is none.

    Raises:
      UserError: the folder holds another search, or its journal is damaged.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if len(search.rungs) > 1:
        pruner = optuna.pruners.SuccessiveHalvingPruner(search.rungs[0], search.factor)
    try:
        journal = str(folder.path / JOURNAL)
        backend = BucketJournal(folder.bucket) if folder.bucket else JournalFileBackend(journal)
        study = optuna.create_study(
            storage=JournalStorage(backend),
            pruner=pruner,
            study_name=_DEFINITION,
            direction="maximize",
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: the journal of the search is damaged; choose another --workdir"
        ) from error
    definition = json.loads(json.dumps(search.fixed))
    if _DEFINITION not in study.user_attrs:
        study.set_user_attr(_DEFINITION, definition)
    before = study.user_attrs[_DEFINITION]
    for name, value in definition.items():
        if before.get(name, value) != value:  # earlier versions lacked digests of data
            raise UserError(
                f"{folder} holds another search: its {name} is {short_repr(before.get(name))}, the "
                f"sweep's is {short_repr(value)}; choose another --workdir or the same value"
            )
    return study


def run_trials(folder: SweepFolder, search: Search, train: TrainTrial) -> Iterator[None]:
    """Trains trials, each in a row's folder, until the search ends; yields after each one.

    Trials that a killed process has left are taken over before new ones begin.
    """
    study = open_study(folder, search)
    while True:
        trials = study.get_trials(deepcopy=False)
        # Two processes may ask for the last trial at once: the one beyond the limit waits for a
        # larger limit.
        unfinished = [t.number for t in trials[: search.limit] if not t.state.is_finished()]
        for number in unfinished:
            try:
                with folder.claim(row_name(number)) as place:
                    score = _train_trial(study, search, number, train, place)
            except BusyError:
                continue
            # After the folder is complete, in a bucket too.
            state = optuna.trial.TrialState.PRUNED if score is None else None
            study.tell(number, score, state, skip_if_finished=True)
            yield
            break
        else:
            if len(trials) < search.limit:
                study.ask()
            elif not unfinished:
                return
            else:
                folder.wait_for([row_name(number) for number in unfinished])


def _train_trial(
    study: optuna.Study, search: Search, number: int, train: TrainTrial, folder: Path
) -> float | None:
    """Trains a trial from rung to rung; returns its score, or None if it is pruned or diverged."""
    frozen = study.get_trials(deepcopy=False)[number]
    if frozen.state.is_finished():  # by another process, since it was chosen
        return frozen.value
    # The seed depends on the trial: processes of one seed would all draw the same first values.
    seed = trial_seed(search.seed, number)
    # constant_liar: trials that still train count as bad ones, so that others are not like them.
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    trial = optuna.Trial(study, frozen._trial_id)
    values = _values(search, trial)
    for steps in search.rungs:
        if steps in frozen.intermediate_values:  # by a process that was killed later
            continue
        score = train(number, values, steps, folder)
        if not math.isfinite(score):
            return None
        if steps == search.rungs[-1]:
            return score
        trial.report(score, steps)
        if trial.should_prune():
            return None
    return None


def _values(search: Search, trial: optuna.Trial) -> dict[str, Any]:
    """Values of a trial, {"section.field": value}."""
    if search.method != "optuna":
        return search.drawn(trial.number)
    return {name: values.suggested(name, trial) for name, values in search.space.items()}


def trial_seed(seed: int, number: int) -> int:
    """Seed of a trial: a hash, since with a sum the trials of the next seed would be the same ones,
    shifted by one."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
