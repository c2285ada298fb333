# SPDX-License-Identifier: Apache-2.0
"""Searches: spaces, methods, successive halving, and the log of decisions of many workers."""

import json
import math
import random
import statistics
import time
from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.halving import next_promotion, rung_steps
from transformer_jax.lab.sweeps.search import (
    DecisionLog,
    Search,
    SearchState,
    replay,
    run_trials,
)
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.lab.sweeps.space import Choices, Interval
from transformer_jax.lab.sweeps.sweep import run_sweep
from transformer_jax.lab.sweeps.trials import search_of

QUICKSTART = str(Path(__file__).parents[3] / "configs" / "quickstart.py")
RATE = "optimizer.learning_rate"
SPACE = {RATE: Interval(1e-4, 1e-1, log=True), "model.num_heads": Choices((2, 4, 8))}
SEARCH = Search(SPACE, "random", limit=12, seed=0, rungs=(1, 3, 9), factor=3)


def loss(values, steps, noise=0.0):
    """A learning curve: it falls to a floor that is lowest at a learning rate of 0.003."""
    floor = 1 + 0.3 * math.log10(values[RATE] / 3e-3) ** 2
    return floor + (3 + noise) * steps**-0.7


def search_alone(search, curve):
    """State after one worker; without files."""
    state = SearchState(search)
    state.add({"limit": search.limit})
    while entry := state.decide():
        state.add(entry)
        for job in list(state.open):
            score = -curve(job.trial, state.trials[job.trial].values, search.rungs[job.rung])
            state.add({"tell": job.trial, "rung": job.rung, "score": score})
    return state


# Definitions


@pytest.fixture(scope="module")
def tiny_search(tiny_language_model):
    base = tiny_language_model | {
        "train.num_steps": 8,
        "eval.every_steps": 2,
        "checkpoint.every_steps": 8,
        "logging.every_steps": 2,
    }
    for name in ("model.num_heads", RATE):
        base.pop(name, None)

    def sweep(space, **fields):
        own = {"seeds": 1, "search": "random", "trials": 3} | fields
        return Sweep(QUICKSTART, base=base, space=space, **own)

    return sweep


RATES = {"low": 1e-4, "high": 1e-2, "log": True}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"optimizer.learning_rte": RATES}, "did you mean config.optimizer.learning_rate"),
        ({RATE: RATES | {"low": 1.0}}, "config.optimizer.learning_rate: 'low' 1 is not below"),
        ({RATE: RATES | {"low": 0}}, "'log' needs a 'low' above 0"),
        ({RATE: {"low": 1e-4, "hgh": 1}}, "no 'hgh'; did you mean high"),
        ({RATE: {"low": 1e-4}}, "'high' is missing"),
        ({RATE: {"low": math.nan, "high": 1}}, "nan is no finite number"),
        ({RATE: []}, r"is \[\]; give a list of values"),
        ({RATE: [0.1, 0.1]}, "has a value twice"),
        ({"model.num_heads": {"low": 0.5, "high": 4}}, "num_heads is 0.5; it must be of type int"),
        ({"model.norm": {"low": "a", "high": "b"}}, "'a' is no number; give a list"),
        ({"model.norm": ["layer", "lyer"]}, "config.model.norm=lyer: .*did you mean layer"),
        ({"model.dropout_rate": {"low": 0, "high": 1.5}}, r"1.5; it must lie in \[0, 1\)"),
        ({"model.num_heads": [3]}, "config.model.num_heads=3: "),
        ({"seed": [0, 1]}, "config.seed cannot be searched"),
        ({"train.num_steps": [4, 8]}, "config.train.num_steps cannot be searched"),
        ({"model.d_model": [16]}, "config.model.d_model is searched, and set for all trials"),
    ],
    ids=str,
)
def test_values_that_no_field_accepts_are_refused_before_any_training(
    tiny_search, tmp_path, space, message
):
    with pytest.raises(tj.UserError, match=message):
        run_sweep(tiny_search(space), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"halving": {"first": 3}}, "first is 3, and config.eval.every_steps is 2"),
        ({"halving": {"first": 6}}, "too near to config.train.num_steps 8"),
        ({"goal": "lss"}, "has no metric 'lss'; did you mean loss"),
        ({"search": "grid"}, "search 'grid' needs a list of values of config.opt"),
    ],
    ids=str,
)
def test_a_search_that_cannot_run_is_refused(tiny_search, tmp_path, fields, message):
    with pytest.raises(tj.UserError, match=message):
        run_sweep(tiny_search({RATE: RATES}, **fields), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"search": "bayes"}, "search is 'bayes'; it must be one of grid, random, optuna"),
        ({"trials": None}, "trials is missing"),
        ({"trials": 2.5}, "trials is 2.5; it is an integer of at least 1"),
        ({"halving": {"factor": 3}}, "write {'first': steps, 'factor': 3}"),
        ({"halving": {"first": 2, "factor": 1}}, "halving: factor is 1"),
        ({"rows": {"a": {}}}, "either rows or a space"),
        ({"space": {}}, "a sweep has at least one row, or a space"),
    ],
    ids=str,
)
def test_fields_of_a_search_are_checked(fields, message):
    given = {"space": {RATE: RATES}, "search": "random", "trials": 3} | fields
    with pytest.raises(ValueError, match=message):
        Sweep("quickstart", **given)


def test_optuna_that_is_not_installed_is_named_with_its_extra(tiny_search, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(tj.UserError, match="EXTRAS=search"):
        search_of(tiny_search({RATE: RATES}, search="optuna"), {})


# Methods


def test_a_grid_has_each_combination_once():
    space = {"a": Choices(("x", "y")), "b": Interval(1, 3)}
    state = search_alone(Search(space, "grid", limit=6), lambda *_: 0.0)
    found = [tuple(trial.values.values()) for trial in state.trials]
    assert found == [(a, b) for a in "xy" for b in (1, 2, 3)]


def test_random_values_are_spread_over_their_range():
    state = search_alone(Search(SPACE, "random", limit=300), lambda *_: 0.0)
    rates = [math.log10(trial.values[RATE]) for trial in state.trials]
    quartiles = statistics.quantiles(rates, n=4)
    assert quartiles == pytest.approx([-3.25, -2.5, -1.75], abs=0.2)
    heads = [trial.values["model.num_heads"] for trial in state.trials]
    assert min(map(heads.count, (2, 4, 8))) > 70
    few = Search({"a": Interval(1, 4, log=True)}, "random", limit=4, seed=1)
    drawn = [trial.values["a"] for trial in search_alone(few, lambda *_: 0.0).trials]
    assert sorted(drawn) == [1, 2, 3, 4]


def test_optuna_looks_near_good_values_and_is_replayed(tmp_path):
    pytest.importorskip("optuna")
    search = Search(SPACE, "optuna", limit=24, rungs=(1, 3), factor=3)
    folder = SweepFolder(tmp_path / "sweep")
    log = DecisionLog(folder, search)
    train = lambda job, trial, _: -loss(trial.values, search.rungs[job.rung])  # noqa: E731
    for _ in run_trials(log, folder, train):
        pass
    rates = [abs(math.log10(trial.values[RATE] / 3e-3)) for trial in log.state.trials]
    assert statistics.fmean(rates[12:]) < statistics.fmean(rates[:12])
    assert len(list(replay(folder))) == len(list((tmp_path / "sweep" / "decisions").iterdir())) - 1


# Successive halving


def test_rungs_are_geometric_and_end_at_the_full_length():
    assert rung_steps(100, 3, 900) == [100, 300, 900]
    assert rung_steps(100, 3, 1000) == [100, 300, 1000]
    assert rung_steps(100, 2, 250) == [100, 250]


def test_the_best_third_of_a_rung_is_promoted_from_the_highest_rung_first():
    rungs = [{0: 5.0, 1: 9.0, 2: 7.0, 3: 1.0, 4: 8.0, 5: math.nan}, {1: 3.0}, {}]
    assert next_promotion(rungs, [set(range(6)), {1}, set()], 3) == (4, 1)
    assert next_promotion(rungs, [set(range(6)), {1, 4}, set()], 3) is None
    rungs[1] |= {4: 4.0, 2: 1.0}
    assert next_promotion(rungs, [set(range(6)), {1, 2, 4}, set()], 3) == (4, 2)


def test_halving_has_the_winner_of_full_training_for_a_part_of_its_steps():
    same, saved = 0, []
    for seed in range(100):
        noise = random.Random(seed)
        levels = [noise.gauss(0, 0.1) for _ in range(27)]
        curve = lambda trial, values, steps: loss(values, steps, levels[trial])  # noqa: B023, E731
        search = Search(SPACE, "random", limit=27, seed=seed, rungs=(10, 30, 90, 270))
        state = search_alone(search, curve)
        full = [curve(n, trial.values, 270) for n, trial in enumerate(state.trials)]
        same += state.ranking()[0] == full.index(min(full))
        saved.append(1 - state.steps_trained() / (27 * 270))
    assert same >= 80 and statistics.fmean(saved) > 0.8


def test_one_trial_trains_in_full_even_if_there_are_few():
    state = search_alone(
        Search(SPACE, "random", limit=2, rungs=(1, 3, 9)), lambda trial, *_: [2.0, 1.0][trial]
    )
    assert [len(trial.scores) for trial in state.trials] == [1, 3]
    lost = search_alone(Search(SPACE, "random", limit=2, rungs=(1, 3)), lambda *_: math.inf)
    assert [len(trial.scores) for trial in lost.trials] == [1, 1]


# The log


def work(workdir, seconds):
    """A worker, whose trials resume from the steps that a killed one has left."""

    def train(job, trial, place):
        path, until = place / "steps", SEARCH.rungs[job.rung]
        for _ in range(path.stat().st_size if path.exists() else 0, until):
            time.sleep(seconds)
            with path.open("a") as file:
                file.write(".")
        return -loss(trial.values, until)

    folder = SweepFolder(workdir)
    for _ in run_trials(DecisionLog(folder, SEARCH), folder, train):
        pass


def decisions(workdir):
    paths = sorted((workdir / "decisions").iterdir(), key=lambda path: int(path.stem))
    return [{k: v for k, v in json.loads(path.read_text()).items() if k != "by"} for path in paths]


def test_a_search_decides_alike_each_time(tmp_path):
    for name in ("alone", "again"):
        work(tmp_path / name, 0)
    assert decisions(tmp_path / "alone") == decisions(tmp_path / "again")
    *_, (_, state) = replay(SweepFolder(tmp_path / "alone", writes=False))
    assert len(state.trials) == 12 and not state.open
    best = min(range(12), key=lambda number: loss(state.trials[number].values, 9))
    assert state.ranking()[0] == best


def test_a_log_of_other_decisions_or_of_another_search_is_refused(tmp_path):
    work(tmp_path / "sweep", 0)
    other = Search(SPACE, "random", limit=12, seed=1, rungs=(1, 3, 9))
    with pytest.raises(tj.UserError, match="its search_seed is 0, the sweep's is 1"):
        DecisionLog(SweepFolder(tmp_path / "sweep"), other)
    path = tmp_path / "sweep" / "decisions" / "2.json"
    whole = path.read_text()
    path.write_text(whole.replace('"values": {', '"values": {"model.d_ff": 1, '))
    with pytest.raises(tj.UserError, match="entry 2 of the log is .*, and a replay decides"):
        list(replay(SweepFolder(tmp_path / "sweep")))
    path.write_text(whole[:9])
    with pytest.raises(tj.UserError, match="entry 2 of the log of decisions is damaged"):
        DecisionLog(SweepFolder(tmp_path / "sweep"), SEARCH)


def test_a_search_grows_in_a_bucket_where_one_of_two_entries_is_added(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = f"memory://searches/{tmp_path.name}"
    few = Search({"a": Choices((1, 2, 3, 4))}, "grid", limit=2)
    logs = [DecisionLog(SweepFolder(address), few) for _ in range(2)]
    for log in logs:
        assert log.read().decide() == {"ask": 0, "values": {"a": 1}}
    assert [log.append(log.state.decide()) for log in logs] == [True, False]
    assert logs[1].read().decide() == {"ask": 1, "values": {"a": 2}}
    logs[1].append(logs[1].state.decide())
    assert logs[0].read().decide() is None
    more = DecisionLog(SweepFolder(address), Search(few.space, "grid", limit=4))
    assert more.state.decide() == {"ask": 2, "values": {"a": 3}}
    with pytest.raises(tj.UserError, match="holds a search with 4 trials"):
        DecisionLog(SweepFolder(address), few)


# Training


def test_trials_resume_from_their_checkpoints_and_the_best_is_printed(
    tiny_search, tmp_path, monkeypatch, capsys
):
    sweep = tiny_search(
        {RATE: [1e-4, 3e-3]}, search="grid", trials=None, halving={"first": 2, "factor": 2}
    )
    file = tmp_path / "sweep.py"
    fields = {name: getattr(sweep, name) for name in ("config", "base", "space", "search")}
    fields |= {"halving": sweep.halving, "seeds": 1}
    file.write_text(f"def get_sweep():\n    return {fields!r}\n")
    workdir = tmp_path / "search"
    assert main(["sweep", f"--sweep={file}", f"--workdir={workdir}"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["learning_rate", "steps", "loss", "seeds"],
        ["trial", "1", "0.003", "8"],
        ["trial", "0", "0.0001", "2"],
    ]
    assert f"train --config={QUICKSTART} --workdir={workdir}-best" in err
    assert "--config.optimizer.learning_rate=0.003" in err
    row = run_sweep(sweep, workdir)[0]  # nothing is left to train
    whole = Sweep(QUICKSTART, {"whole": {RATE: 3e-3}}, sweep.base, seeds=1)
    (alone,) = run_sweep(whole, tmp_path / "whole")
    assert row.metrics == alone.metrics and row.steps == 8 and row.values == {RATE: 3e-3}
    with pytest.raises(tj.UserError, match="holds a search"):
        run_sweep(whole, workdir)
    with pytest.raises(tj.UserError, match="holds a sweep"):
        run_sweep(sweep, tmp_path / "whole")
