# SPDX-License-Identifier: Apache-2.0
"""Nights: what is promoted and refused, by which rule, and that a night continues."""

import json
import math
import os
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.errors import UserError
from transformer_jax.lab.night import jobs, loop
from transformer_jax.lab.night.jobs import JobError
from transformer_jax.lab.night.ledger import Ledger
from transformer_jax.lab.night.loop import decide_proposals, finish_night
from transformer_jax.lab.night.report import night_state
from transformer_jax.lab.verification.outcomes import DIFFERS, Outcome, Verification
from transformer_jax.logs.records import to_json


def rate(value):
    return {"optimizer.learning_rate": value}


FIELDS = {"config": "quickstart", "smallest": 0.01, "budget": {"runs": 99}, "base": rate(0.1)}
FIELDS |= {"looks": (2, 4), "proposals": 4}


def write_night(folder, end="", **fields):
    """A folder with a definition; fields replace or extend those of `FIELDS`."""
    (folder / "proposals").mkdir(parents=True, exist_ok=True)
    text = f"def get_night():\n    return {FIELDS | fields!r} {end}\n"
    (folder / "night.py").write_text(text)
    return folder


def propose(folder, name, overrides, arrived):
    path = folder / "proposals" / f"{name}.json"
    path.write_text(json.dumps({"why": "It may help.", "overrides": overrides}))
    os.utime(path, (arrived, arrived))


def run_here(kind, limits, guarded, **arguments):
    """`run_job` in this process."""
    result = json.loads(to_json(jobs.do_job(kind, arguments)))
    if "rule" in result:
        raise JobError(result["rule"], result["reason"])
    return result


class Drawn:
    """`run_job` that trains nothing: losses are drawn, lower by the learning rate."""

    def __init__(self):
        self.rates = {}
        self.shared = {"data": "same"}
        self.computes = {"step": "SHA-256 1"}
        self.jobs = []
        self.limits = {}

    def __call__(self, kind, limits, **arguments):
        self.jobs.append(kind)
        self.limits[limits.folder.name] = limits.seconds
        return getattr(self, kind)(**arguments)

    def check(self, **_):
        return {"failing": []}

    def fingerprint(self, **_):
        return dict(self.computes)

    def train(self, overrides, folder, seeds, **_):
        rate = overrides["optimizer.learning_rate"]
        self.rates[folder] = rate
        first = overrides["seed"]
        workdirs = [f"{folder}/seed_{first + i}" if rate < 100 else "" for i in range(seeds)]
        costs = {"parameters": 7, "memory": 10**6}
        return {"workdirs": workdirs, "seconds": 2.0 * seeds, "costs": costs}

    def evaluate(self, workdirs, **_):
        values = []
        for path in workdirs:
            # The same in whatever folder the night is.
            below = path.rpartition("/runs/")[2]
            noise = np.random.default_rng([*below.encode()]).normal(0, 0.01)
            values.append(3.0 + noise - self.rates[path.rpartition("/")[0]] if path else None)
        return {"values": values, "digests": dict(self.shared) if any(workdirs) else {}}


@pytest.fixture
def drawn(monkeypatch):
    job = Drawn()
    monkeypatch.setattr(loop, "run_job", job)
    return job


@pytest.fixture
def night(tmp_path):
    return write_night(tmp_path / "night")


def decided(folder):
    return {line["name"]: (line["verdict"], line["rule"]) for line in decide_proposals(folder)}


def test_it_continues_where_it_was(night, drawn, monkeypatch):
    assert decided(night) == {}
    propose(night, "slow", rate(0.105), 1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(drawn, "evaluate", Mock(side_effect=KeyboardInterrupt))
        decided(night)
    (start,) = Ledger(night).of_kind("start")
    (line,) = decide_proposals(night)
    assert (line["number"], line["level"]) == (start["number"], start["level"])  # no second test
    assert len(Ledger(night).of_kind("start")) == 1 and drawn.jobs.count("check") == 2
    torn = (night / "ledger.jsonl").read_text() + '{"line": 9, "ki'
    (night / "ledger.jsonl").write_text(torn)  # by a kill
    propose(night, "fast", rate(0.9), 2)
    assert decided(night) == {"fast": ("promoted", "better")}
    assert night_state(night)["baseline"]["overrides"] == rate(0.9)


def test_a_page_shows_proposals_and_the_winner(night, drawn, show):
    propose(night, "fast", rate(0.9), 1)
    propose(night, "longer", {"train.num_steps": 9}, 2)
    report = tj.night(night, finish=True)
    assert drawn.limits["winner"] == math.inf  # promotions may add up to a slow one
    assert "fast" in report.as_text() and "winner" in report.as_markdown()
    page = show((night / "night.html").read_text())
    assert not page.complaints()
    assert page.texts("#proposals .verdict") == ["promoted: better", "refused: budget"]
    assert float(page.texts("#proposals td.number")[0]) == pytest.approx(0.8, abs=0.02)
    assert page.texts("#finish th")[3:5] == ["baseline", "winner"]


def test_failures_are_records_by_rule(night, drawn, monkeypatch):
    """Whatever a proposal does, the next one is tested."""
    failing = ("time", "disk", "crash")
    changes = {
        "screening": (0.01, {}),
        **{rule: (0.5, {"check": Mock(side_effect=JobError(rule, "why"))}) for rule in failing},
        "oracles": (0.6, {"check": lambda **_: {"failing": ["causal differs"]}}),
        "data": (0.7, {"shared": {"data": "other"}}),
        "diverged": (1000.0, {}),
    }
    assert decided(night) == {}
    for i, (rule, (value, attributes)) in enumerate(changes.items()):
        propose(night, f"{rule}_case", rate(value), i)
        with monkeypatch.context() as patch:
            for name, attribute in attributes.items():
                patch.setattr(drawn, name, attribute)
            assert decided(night) == {f"{rule}_case": ("refused", rule)}
    taken_and_long = ("time_case", 250 * "x")
    for name in taken_and_long:
        propose(night, name, rate(0.7), 20)
    assert decided(night) == dict.fromkeys(taken_and_long, ("refused", "name"))
    (night / "proposals" / "link.py").symlink_to("/nowhere")
    assert decided(night) == {"link": ("refused", "form")}

    def edit(**_):
        text = (night / "ledger.jsonl").read_text()
        (night / "ledger.jsonl").write_text(text.replace("refused", "promoted"))
        return {"failing": []}

    propose(night, "edits", rate(0.7), 22)
    monkeypatch.setattr(drawn, "check", edit)
    with pytest.raises(UserError, match="was edited"):
        decided(night)


def test_a_component_that_is_changed_while_it_is_tested_is_tested_again(night, drawn, monkeypatch):
    path = night / "proposals" / "mine.py"
    component = '"""It may help."""\nOVERRIDES = {"optimizer.learning_rate": %s}\n'
    path.write_text(component % 0.9)
    train = drawn.train

    def edit(**arguments):
        if "mine" in arguments["folder"]:
            path.write_text(component % 0.11)
        return train(**arguments)

    monkeypatch.setattr(drawn, "train", edit)
    ends = [(line["verdict"], line["rule"]) for line in decide_proposals(night)]
    assert ends == [("refused", "form"), ("refused", "screening")]
    assert "mine.py was changed" in Ledger(night).of_kind("end")[0]["reason"]


def test_other_data_are_found_where_the_first_seed_of_the_baseline_diverged(
    night, drawn, monkeypatch
):
    train = drawn.train

    def diverge(**arguments):
        trained = train(**arguments)
        if "baseline" in arguments["folder"]:
            trained["workdirs"][:2] = ["", ""]
        else:
            drawn.shared["data"] = "other"
        return trained

    propose(night, "fast", rate(0.9), 1)
    monkeypatch.setattr(drawn, "train", diverge)
    assert decided(night) == {"fast": ("refused", "data")}
    spent = Ledger(night).of_kind("end")[0]["spent"]
    assert spent["runs"] == 2  # that were trained in vain


def test_nothing_is_decided_after_another_worker_has_opened_the_held_out_data(
    night, drawn, monkeypatch
):
    def finish(**_):
        monkeypatch.undo()
        monkeypatch.setattr(loop, "run_job", drawn)
        finish_night(night)
        return {"failing": []}

    assert decided(night) == {}
    propose(night, "fast", rate(0.9), 1)
    monkeypatch.setattr(drawn, "check", finish)
    with pytest.raises(UserError, match="is finished"):
        decided(night)
    assert Ledger(night).lines[-1]["kind"] == "finish"


def test_code_may_change_while_a_night_is_under_way_but_not_what_it_computes(
    night, drawn, monkeypatch
):
    propose(night, "early", rate(0.105), 1)
    decided(night)
    monkeypatch.setattr(loop, "_package_here", lambda: "transformer_jax 9")
    propose(night, "late", rate(0.9), 2)
    drawn.computes = {"step": "SHA-256 2", "order": "of a later version"}
    assert_refused(
        {
            "since this night began, and with it step of the baseline": lambda: decided(night),
            "in a new folder": lambda: finish_night(night),
        }
    )
    drawn.computes = {"step": "SHA-256 1", "order": "of a later version"}
    assert decided(night) == {"late": ("promoted", "better")}


def test_the_winner_is_the_one_at_the_end_of_the_training(night, drawn, monkeypatch):
    """Another worker promotes a proposal while this one trains the winner."""
    propose(night, "fast", rate(0.7), 1)
    assert decided(night) == {"fast": ("promoted", "better")}
    train = drawn.train

    def rival_wins(**arguments):
        monkeypatch.setattr(drawn, "train", train)
        propose(night, "faster", rate(0.9), 2)
        assert decided(night) == {"faster": ("promoted", "better")}
        return train(**arguments)

    monkeypatch.setattr(drawn, "train", rival_wins)
    finish = finish_night(night)
    assert finish["promoted"] == 2
    rows = [Ledger(night).measured(name, "finish_2")[0] for name in ("baseline", "winner")]
    seeds = [[path.rpartition("/")[2] for path in row["workdirs"]] for row in rows]
    assert seeds[0] == seeds[1] == [f"seed_{3000 + i}" for i in range(5)]
    assert finish["values"]["valid"]["winner"] == rows[1]["values"]


def test_costs_budget_and_other_workers(night, drawn, monkeypatch):

    def begun(name, value, end="", **fields):
        folder = write_night(night.parent / name, end, **fields)
        propose(folder, name, rate(value), 1)
        return folder

    priced = "| dict(price=lambda own, base: own['parameters'] - base['parameters'] + 1.0)"
    dear = begun("dear", 0.9, priced)
    assert decided(dear) == {"dear": ("refused", "screening")}
    write_night(dear, priced.replace("1.0", "2.0"))
    assert_refused({"price was": lambda: decided(dear)})
    fails = begun("fails", 0.9, "| dict(price=len)")
    with pytest.raises(UserError, match="price of .* fails: TypeError"):
        decided(fails)

    poor = begun("poor", 0.01, budget={"runs": 5})
    propose(poor, "second", rate(0.9), 2)
    assert main(["night", str(poor)]) == 1
    assert night_state(poor)["open"] == ["second"]
    assert len(Ledger(poor).of_kind("start")) == 1  # and no level of its own
    half = begun("half", 0.13, budget={"seconds": 12})  # its first look is the last paid for
    assert decided(half) == {} and night_state(half)["open"] == ["half"]

    # What is trained when the budget is used up is decided, though a kill came before.
    slow = begun("slow", 0.01, budget={"runs": 6})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "judge", Mock(side_effect=KeyboardInterrupt))
        decided(slow)
    assert decided(slow) == {"slow": ("refused", "screening")}

    for job, expected in {
        "check": [("refused", 1)],
        "train": [("superseded", 0), ("refused", 1)],
    }.items():
        night = begun(job, 0.7)
        with monkeypatch.context() as patch:
            patch.setattr(drawn, job, rival_wins(night, getattr(drawn, job)))
            verdicts = [(line["verdict"], line["baseline"]) for line in decide_proposals(night)]
        assert verdicts == expected
    # A new baseline has seeds that no test has used.
    measured = [Ledger(night).measured("baseline", number)[0] for number in (0, 1)]
    assert [line["workdirs"][0].rpartition("/")[2] for line in measured] == ["seed_0", "seed_1000"]


def rival_wins(folder, job):
    """A job during which another process promotes a proposal."""

    def run(**arguments):
        ledger = Ledger(folder)
        if arguments["overrides"] | rate(0.7) == arguments["overrides"] and not ledger.promoted:
            fields = {"name": "rival", "digest": "", "rule": "better", "number": None}
            fields |= {"overrides": rate(0.8), "files": {}, "lines": 0, "verdict": "promoted"}
            with ledger.adding():
                ledger.add("end", **fields)
        return job(**arguments)

    return run


def test_what_cannot_begin_or_continue_is_one_line(night, drawn, tmp_path, monkeypatch):
    propose(night, "fast", rate(0.9), 1)
    decided(night)
    ledger = (night / "ledger.jsonl").read_text()
    failing = Verification("", [Outcome("causal", DIFFERS, "", 1.0, 1.0, "", 0.0)])
    monkeypatch.setattr(jobs, "verify", lambda *_, **__: failing)
    number = iter(range(100))

    def starts(**fields):
        return partial(decided, write_night(tmp_path / str(next(number)), **fields))

    def continues(content=ledger, **fields):
        folder = write_night(tmp_path / str(next(number)), **fields)
        (folder / "ledger.jsonl").write_text(content)
        (folder / ".ledger.jsonl.lock").write_text((night / ".ledger.jsonl.lock").read_text())
        return partial(decided, folder)

    continues(budget={"seconds": 5})()
    assert_refused(
        {
            "holds no night.py": lambda: decided(tmp_path),
            "error_rate was 0.05": continues(error_rate=0.1),
            "optimizer.learning_rate was 0.1": continues(base=rate(0.2)),
            "edited (line": continues(ledger.replace('"promoted"', '"refused"')),
            "its last lines are missing": continues("".join(ledger.splitlines(True)[:-2])),
        }
    )
    monkeypatch.setattr(loop, "run_job", run_here)
    assert_refused(
        {
            "no metric 'bleus'": starts(metric="bleus"),
            "fails its own oracles: causal": starts(),
            "there is no field smalest": starts(smalest=1),
            "control is 'none'": starts(control="none"),
            "write {'runs': 200}": starts(budget={"hours": 1}),
            "smallest is 0": starts(smallest=0),
            "finish_seeds is 1": starts(finish_seeds=1),
            "better is 'more'": starts(better="more"),
            "higher bleu is better": starts(metric="bleu"),
        }
    )
