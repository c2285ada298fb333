# SPDX-License-Identifier: Apache-2.0
"""Searches: spaces, methods, and studies that many workers share."""

import dataclasses
import json
import math
import random
import statistics
import time
from functools import partial

import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.lab.sweeps import sweep as sweeps
from transformer_jax.lab.sweeps import tables
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.results import encoded_result
from transformer_jax.lab.sweeps.search import Choices, Interval, Search, search_of
from transformer_jax.lab.sweeps.shared_folder import SweepFolder
from transformer_jax.lab.sweeps.sweep import run_sweep
from transformer_jax.lab.sweeps.tables import Row

optuna = pytest.importorskip("optuna")
from transformer_jax.lab.sweeps.study import open_study, run_trials, trial_seed  # noqa: E402

RATE = "optimizer.learning_rate"
RATES = {"low": 1e-4, "high": 1e-2, "log": True}
SPACE = {RATE: Interval(1e-4, 1e-1, log=True), "model.num_heads": Choices((2, 4, 8))}
SEARCH = Search(SPACE, "random", limit=12, rungs=(1, 3, 9))


def loss(values, steps, noise=0.0):
    """A learning curve: it falls to a floor that is lowest at a learning rate of 0.003."""
    floor = 1 + 0.3 * math.log10(values[RATE] / 3e-3) ** 2
    return floor + (3 + noise) * steps**-0.7


def work(workdir, search=SEARCH, seconds=0.0):
    """A worker, whose trials resume from the steps that a killed one has left."""

    def train(number, values, until, place):
        path = place / "steps"
        for _ in range(path.stat().st_size if path.exists() else 0, until):
            time.sleep(seconds)
            with path.open("a") as file:
                file.write(".")
        return -loss(values, until)

    list(run_trials(SweepFolder(workdir), search, train))


def run(workdir, search, score):
    """Trials that are trained, (number, values, steps), each with its `score` of these three."""
    calls = []

    def train(*call_and_place):
        calls.append(call_and_place[:3])
        return score(*calls[-1])

    list(run_trials(SweepFolder(workdir), search, train))
    return calls


def trials_of(workdir, search=SEARCH):
    return open_study(SweepFolder(workdir), search).trials


@pytest.fixture(scope="module")
def tiny_search(tiny_language_model):
    steps = {"train.num_steps": 8, "eval.every_steps": 2}
    base = tiny_language_model | steps | {"checkpoint.every_steps": 8, "logging.every_steps": 2}
    for name in ("model.num_heads", RATE):
        base.pop(name, None)

    def sweep(space, **fields):
        fields = {"seeds": 1, "search": "random", "trials": 3} | fields
        return Sweep("quickstart", base=base, space=space, **fields)

    return sweep


def test_searches_that_cannot_run_are_refused_before_any_training(tiny_search, tmp_path):
    spaces = {
        "did you mean config.optimizer.learning_rate": {"optimizer.learning_rte": RATES},
        "config.optimizer.learning_rate: 'low' 1 is not below": {RATE: RATES | {"low": 1.0}},
        "'log' needs a 'low' above 0": {RATE: RATES | {"low": 0}},
        "unexpected keyword argument 'hgh'": {RATE: {"low": 1e-4, "hgh": 1}},
        "missing 1 required positional argument: 'high'": {RATE: {"low": 1e-4}},
        "nan is no finite number": {RATE: {"low": math.nan, "high": 1}},
        "is []; give a list of values": {RATE: []},
        "num_heads is 0.5; it must be of type int": {"model.num_heads": {"low": 0.5, "high": 4}},
        "'a' is no number; give a list": {"model.norm": {"low": "a", "high": "b"}},
        "did you mean layer": {"model.norm": ["layer", "lyer"]},
        "1.5; it must lie in [0, 1)": {"train.label_smoothing": {"low": 0, "high": 1.5}},
        "config.model.num_heads=3: ": {"model.num_heads": [3]},
        "config.seed cannot be searched": {"seed": [0, 1]},
        "config.train.num_steps cannot be searched": {"train.num_steps": [4, 8]},
        "config.model.d_model is searched, and set for all trials": {"model.d_model": [16]},
    }
    fields = {
        "first is 3, and config.eval.every_steps is 2": {"halving": {"first": 3}},
        "too near to config.train.num_steps 8": {"halving": {"first": 6}},
        "has no metric 'lss'; did you mean loss": {"goal": "lss"},
        "search 'grid' needs a list of values of config.opt": {"search": "grid"},
        "search is 'bayes'; it must be one of grid, random, optuna": {"search": "bayes"},
        "trials is missing": {"trials": None},
        "trials is 2.5; it is an integer of at least 1": {"trials": 2.5},
        "write {'first': steps, 'factor': 3}": {"halving": {"factor": 3}},
        "halving: factor is 1": {"halving": {"first": 2, "factor": 1}},
        "either rows or a space": {"rows": {"a": {}}},
        "a sweep has at least one row, or a space": {"space": {}},
    }
    fields |= {words: {"space": space} for words, space in spaces.items()}

    def train(fields):
        run_sweep(tiny_search(**{"space": {RATE: RATES}, **fields}), tmp_path / "sweep")

    assert_refused({words: partial(train, changes) for words, changes in fields.items()})
    assert not (tmp_path / "sweep").exists()


def test_only_studies_need_optuna(tiny_search, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not search_of(tiny_search({RATE: RATES})).uses_study
    for fields in ({"search": "optuna"}, {"halving": {"first": 2}}):
        with pytest.raises(tj.UserError, match="EXTRAS=search"):
            search_of(tiny_search({RATE: RATES}, **fields))


def test_a_grid_has_each_combination_once():
    search = Search({"a": Choices(("x", "y")), "b": Interval(1, 3)}, "grid", limit=6)
    points = [tuple(search.drawn(number).values()) for number in range(6)]
    assert points == [(a, b) for a in "xy" for b in (1, 2, 3)]


def test_random_values_are_spread_over_their_range():
    search = Search(SPACE, "random", limit=300)
    points = [search.drawn(number) for number in range(300)]
    quartiles = statistics.quantiles([math.log10(point[RATE]) for point in points], n=4)
    assert quartiles == pytest.approx([-3.25, -2.5, -1.75], abs=0.2)
    heads = [point["model.num_heads"] for point in points]
    assert min(map(heads.count, (2, 4, 8))) > 70
    few = Search({"a": Interval(1, 4, log=True)}, "random", limit=4, seed=1)
    assert sorted(few.drawn(number)["a"] for number in range(4)) == [1, 2, 3, 4]
    assert len({trial_seed(seed, number) for seed in range(8) for number in range(8)}) == 64


def test_optuna_looks_near_good_values_and_alike_each_time(tmp_path):
    search = Search(SPACE, "optuna", limit=40, rungs=(1, 3))
    drawn = []
    for name in ("a", "b"):
        work(tmp_path / name, search)
        drawn.append([trial.params[RATE] for trial in trials_of(tmp_path / name, search)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 40
    distances = [abs(math.log10(rate / 3e-3)) for rate in drawn[0]]
    assert statistics.fmean(distances[20:]) < statistics.fmean(distances[:10])


def test_rungs_are_geometric_and_end_at_the_full_length(tiny_search):
    for first, factor, steps, rungs in (
        (100, 3, 900, (100, 300, 900)),
        (100, 3, 1000, (100, 300, 1000)),
        (100, 2, 250, (100, 250)),
    ):
        sweep = tiny_search({RATE: RATES}, halving={"first": first, "factor": factor})
        assert search_of(sweep.with_base({"train.num_steps": steps})).rungs == rungs


def test_halving_has_the_winner_of_full_training_for_a_part_of_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    same = 0
    shares = []
    for seed in range(6):
        noise = random.Random(seed)
        levels = [noise.gauss(0, 0.1) for _ in range(27)]
        search = Search(SPACE, "random", limit=27, seed=seed, rungs=(10, 30, 90, 270))
        scores = [-loss(search.drawn(n), 270, levels[n]) for n in range(27)]
        run(tmp_path / str(seed), search, lambda n, *at, noise=levels: -loss(*at, noise[n]))
        trials = trials_of(tmp_path / str(seed), search)
        complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
        same += max(complete, key=lambda trial: trial.value).number == scores.index(max(scores))
        steps = [270 if t in complete else max(t.intermediate_values) for t in trials]
        shares.append(1 - sum(steps) / (27 * 270))
    assert same >= 5 and statistics.fmean(shares) > 0.7


def test_a_trial_that_diverges_ends_and_another_trains_in_full(tmp_path):
    search = Search(SPACE, "random", limit=3, rungs=(1, 3))
    calls = run(tmp_path, search, lambda number, *_: [-math.inf, -1.0, -2.0][number])
    assert [(number, steps) for number, _, steps in calls] == [(0, 1), (1, 1), (1, 3), (2, 1)]


def test_a_study_resumes_grows_and_refuses_another_search(tmp_path):
    few = Search(SPACE, "random", limit=2, rungs=(1, 3), fixed={"search_seed": 0})
    more = dataclasses.replace(few, limit=4)
    for search in (few, more, few):
        work(tmp_path, search)
    assert len(trials_of(tmp_path, more)) == 4
    other = dataclasses.replace(more, fixed={"search_seed": 1})
    assert_refused({"its search_seed is 0, the sweep's is 1": partial(trials_of, tmp_path, other)})
    path = tmp_path / "search.journal"
    path.write_bytes(path.read_bytes()[:-99] + b"\n{}\n")
    assert_refused({"the journal of the search is damaged": partial(trials_of, tmp_path, more)})


def test_a_trial_of_a_killed_process_continues_after_its_last_rung(tmp_path):
    def killed(number, values, steps):
        if steps == 3:
            raise KeyboardInterrupt
        return -1.0

    search = Search(SPACE, "optuna", limit=1, rungs=(1, 3))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, search, killed)
    (before,) = trials_of(tmp_path, search)
    ((_, values, steps),) = run(tmp_path, search, lambda *_: -2.0)
    assert (values[RATE], steps) == (float(f"{before.params[RATE]:.4g}"), 3)


def test_workers_share_a_study_in_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    address = f"memory://searches/{tmp_path.name}"
    search = Search({"a": Choices((1, 2, 3, 4))}, "optuna", limit=4)
    studies = [open_study(SweepFolder(address), search) for _ in range(2)]
    numbers = [studies[n % 2].ask().number for n in range(5)]
    assert numbers == [0, 1, 2, 3, 4]  # one more than the limit, which is left out
    calls = run(address, search, lambda number, values, steps: float(values["a"]))
    assert [number for number, _, _ in calls] == [0, 1, 2, 3]
    assert [trial.state.name for trial in studies[0].trials] == ["COMPLETE"] * 4 + ["RUNNING"]


def test_a_search_whose_values_never_go_together_has_no_rows(
    tiny_search, tmp_path, monkeypatch, caplog
):
    """Only the values of its first trial are known beforehand."""
    known = iter([sweeps.trial_config] * 2)

    def trial_config(*arguments):
        for config in known:
            return config(*arguments)
        raise tj.UserError("these do not go together")

    monkeypatch.setattr(sweeps, "trial_config", trial_config)
    sweep = tiny_search({RATE: RATES}, search="optuna", trials=2)
    assert run_sweep(sweep, tmp_path / "sweep") == []
    assert caplog.text.count("these do not go together") == 2
    assert tables.as_text([]).split() == ["seeds", "parameters", "tokens/s", "time"]


def test_trials_that_are_known_beforehand_are_rows_of_one_program(
    tiny_search, tmp_path, monkeypatch
):
    programs, rates = [], [3e-3, 1e-4, 1e-3]

    def train_rows(sweep, rows, *_):
        programs.append([spec.settings.optimizer.learning_rate for spec in rows.values()])
        for place, spec in rows.items():
            score = {"loss": [spec.settings.optimizer.learning_rate]}
            row = Row(spec.name, score, 9, 1.0, 1.0, spec.values, spec.until)
            asked = sweep.asked(spec.settings, spec.until, spec.data)
            (place / "result.json").write_text(encoded_result(row, asked))

    monkeypatch.setattr(sweeps, "train_rows", train_rows)
    sweep = tiny_search({RATE: rates}, search="grid", trials=None)
    rows = run_sweep(sweep, tmp_path / "sweep")
    assert programs == [rates]
    found = [(row.name, row.values[RATE], row.mean("loss"), row.steps) for row in rows]
    assert found == [(f"trial {i}", rates[i], rates[i], 8) for i in (1, 2, 0)]


def test_trials_are_rows_and_the_best_is_printed(tiny_search, tmp_path, capsys):
    """Those of a grid; halving ends one of them early."""
    halving = {"first": 4, "factor": 2}
    sweep = tiny_search({RATE: [3e-3, 1e-4]}, search="grid", trials=None, halving=halving)
    file = tmp_path / "sweep.py"
    names = ("config", "base", "space", "search", "halving", "seeds")
    fields = {name: getattr(sweep, name) for name in names}
    file.write_text(f"def get_sweep():\n    return {fields!r}\n")
    workdir = tmp_path / "search"
    assert main(["sweep", f"--sweep={file}", f"--workdir={workdir}"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["learning_rate", "steps", "loss", "seeds"],
        ["trial", "0", "0.003", "8"],
        ["trial", "1", "0.0001", "4"],
    ]
    assert f"train --config=quickstart --workdir={workdir}-best" in err
    assert "--config.optimizer.learning_rate=0.003" in err
    row = run_sweep(sweep, workdir)[0]  # nothing is left to train
    assert row.steps == 8 and row.values == {RATE: 3e-3}
    # Also a trial that ended early has the schedule of the full length.
    configs = {
        path.parts[-3]: json.loads(path.read_text()) for path in workdir.rglob("config.json")
    }
    lengths = {name: config["train"]["num_steps"] for name, config in configs.items()}
    assert lengths == {"trial_0": 8, "trial_1": 8}
