# SPDX-License-Identifier: Apache-2.0
"""Nights: what is promoted and refused, by which rule, and that a night continues."""

import json
import math
import os
import shutil

import pytest

from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.errors import UserError
from transformer_jax.lab.night import jobs, loop
from transformer_jax.lab.night.jobs import JobError
from transformer_jax.lab.night.loop import decide_proposals, finish_night, paired_differences
from transformer_jax.lab.night.report import night_state, write_page
from transformer_jax.lab.verification.outcomes import DIFFERS, Outcome, Verification
from transformer_jax.logs.records import to_json

FAST = {"optimizer.learning_rate": 0.5}
FIELDS = {"config": "quickstart", "smallest": 0.01, "budget": {"runs": 30}, "looks": (2, 4)}


def write_night(folder, **fields):
    """A folder with a definition; fields replace or extend those of `FIELDS`."""
    (folder / "proposals").mkdir(parents=True, exist_ok=True)
    text = f"def get_night():\n    return {FIELDS | fields!r}\n"
    (folder / "night.py").write_text(text)
    return folder


def propose(folder, name, overrides, arrived, why="It may help."):
    path = folder / "proposals" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps({"why": why, "overrides": overrides}))
    os.utime(path, (arrived, arrived))


def run_here(kind, limits, **arguments):
    """`run_job` in this process."""
    arguments.pop("guarded")
    limits.folder.mkdir(parents=True, exist_ok=True)
    result = json.loads(to_json(jobs.do_job(kind, arguments)))
    if "rule" in result:
        raise JobError(result["rule"], result["reason"])
    return result


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Jobs run here, and the baseline's oracles are those of other tests."""
    monkeypatch.setattr(loop, "run_job", run_here)
    monkeypatch.setattr(jobs, "verify", lambda *_, **__: Verification("", []))


@pytest.fixture(scope="module")
def base(tiny_language_model):
    """The baseline, which hardly learns."""
    steps = {"train.num_steps": 24, "eval.every_steps": 24, "checkpoint.every_steps": 24}
    return tiny_language_model | steps | {"optimizer.learning_rate": 1e-9}


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    """Folder of a night of three proposals that is not finished yet, and the lines it gave."""
    folder = write_night(tmp_path_factory.mktemp("nights") / "night", base=base, question="Faster?")
    propose(folder, "fast.json", FAST, 1)
    propose(folder, "longer.json", {"train.num_steps": 48}, 2)
    propose(folder, "same.json", {"train.remat": "full"}, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_job", run_here)
        patch.setattr(jobs, "verify", lambda *_, **__: Verification("", []))
        lines = list(decide_proposals(folder))
    return folder, lines


@pytest.fixture
def night(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "night")


def test_better_is_promoted_and_rules_and_ties_refuse(finished):
    folder, lines = finished
    verdicts = {line["name"]: (line["verdict"], line["rule"]) for line in lines}
    assert verdicts == {
        "fast": ("promoted", "better"),
        "longer": ("refused", "budget"),
        "same": ("refused", "screening"),
    }
    fast, longer, same = lines
    assert fast["difference"] > fast["interval"][0] > 0 and longer["number"] is None
    assert same["number"] == 1 and same["baseline"] == 1 and same["difference"] == 0
    assert fast["costs"].keys() == {"seconds", "memory", "parameters", "lines"}
    ledger = loop.Ledger(folder)
    assert ledger.spent()["runs"] == sum(len(m["values"]) for m in ledger.of_kind("measured"))
    # A new baseline has seeds that no test has used.
    seeds = {m["baseline"]: m["workdirs"][0][-6:] for m in ledger.of_kind("measured")}
    assert seeds == {0: "seed_0", 1: "d_1000"}


def test_it_continues_where_it_was_and_needs_new_names(night, monkeypatch):
    assert list(decide_proposals(night)) == []
    propose(night, "fast.json", FAST | {"optimizer.beta1": 0.5}, 4)
    propose(night, "same/proposal.json", {"train.remat": "dots"}, 5)
    lines = list(decide_proposals(night))
    assert [line["rule"] for line in lines] == ["name", "name"]
    state = night_state(night)
    assert state["open"] == [] and state["promoted"] == ["fast"]
    assert state["baseline"]["overrides"]["optimizer.learning_rate"] == 0.5

    propose(night, "slow.json", {"optimizer.learning_rate": 0.4}, 6)
    monkeypatch.setattr(loop, "run_job", stop_after("train"))
    with pytest.raises(KeyboardInterrupt):
        list(decide_proposals(night))
    begun = loop.Ledger(night).of_kind("start")
    monkeypatch.setattr(loop, "run_job", run_here)
    (line,) = decide_proposals(night)
    assert line["number"] == begun[-1]["number"]  # no second test
    assert len(loop.Ledger(night).of_kind("start")) == len(begun)


def stop_after(last):
    def run(kind, limits, **arguments):
        result = run_here(kind, limits, **arguments)
        if kind == last:
            raise KeyboardInterrupt
        return result

    return run


def test_the_end_opens_held_out_data_once_and_a_page_shows_all(night, base, capsys):
    assert main(["night", str(night), "--next"]) == 0
    assert json.loads(capsys.readouterr().out)["is_finished"] is False
    line = finish_night(night)
    assert line["rows"]["winner"]["test"] is None  # these data have no test split
    assert line["differences"]["valid"]["interval"][0] > 0
    report = write_page(night)
    assert "fast" in report.as_text() and "winner" in report.as_markdown()
    assert "It may help." in (night / "night.html").read_text()
    with pytest.raises(UserError, match="is finished"):
        list(decide_proposals(night))


def test_failures_and_edits_are_records_by_rule(night, monkeypatch):
    """Whatever a proposal does, the next one is tested; an edit of the ledger is undone."""

    def failing(rule):
        def run(kind, limits, **arguments):
            raise JobError(rule, "why")

        return run

    def edit_ledger(kind, limits, **arguments):
        text = (night / "ledger.jsonl").read_text()
        (night / "ledger.jsonl").write_text(text.replace("fast", "slow"))
        return {"failing": []}

    def edit_definition(kind, limits, **arguments):
        with (night / "night.py").open("a") as file:
            file.write("# edited\n")
        return {"failing": []}

    def other_data(kind, limits, **arguments):
        result = run_here(kind, limits, **arguments)
        if kind == "evaluate":
            result["digests"]["data"] = "other"
        return result

    before = (night / "ledger.jsonl").read_text()
    cases = {
        "time": failing("time"),
        "disk": failing("disk"),
        "crash": failing("crash"),
        "oracles": lambda *_, **__: {"failing": ["causal differs"]},
        "ledger": edit_ledger,
        "data": other_data,
        "diverged": run_here,
        "baseline": edit_definition,
    }
    for i, (rule, run) in enumerate(cases.items()):
        overrides = {"optimizer.learning_rate": 1e12 if rule == "diverged" else 0.3 + i / 100}
        propose(night, f"{rule}_case.json", overrides, 10 + i)
        monkeypatch.setattr(loop, "run_job", run)
        (line,) = decide_proposals(night)
        assert (line["verdict"], line["rule"]) == ("refused", rule), line["reason"]
    assert (night / "ledger.jsonl").read_text().startswith(before)


def test_what_cannot_begin_or_continue_is_one_line(night, base, tmp_path, monkeypatch):
    failing = Verification("", [Outcome("causal", DIFFERS, "", 1.0, 1.0, "", 0.0)])
    monkeypatch.setattr(jobs, "verify", lambda *_, **__: failing)
    number = iter(range(100))

    def starts(**fields):
        folder = write_night(tmp_path / str(next(number)), **({"base": base} | fields))
        return lambda: list(decide_proposals(folder))

    def continues(edit):
        folder = shutil.copytree(night, tmp_path / str(next(number)))
        edit(folder)
        return lambda: list(decide_proposals(folder))

    def without_last(folder):
        path = folder / "ledger.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))

    def edited(folder):
        path = folder / "ledger.jsonl"
        path.write_text(path.read_text().replace('"promoted"', '"refused"'))

    asked = {"base": base, "question": "Faster?"}
    rate = continues(lambda folder: write_night(folder, error_rate=0.1, **asked))
    budget = continues(lambda folder: write_night(folder, **(asked | {"budget": {"runs": 99}})))
    assert budget() == []
    assert_refused(
        {
            "holds no night.py": lambda: list(decide_proposals(tmp_path)),
            "error_rate was 0.05": rate,
            "edited (line": continues(edited),
            "its last lines are missing": continues(without_last),
            "no metric 'bleus'": starts(metric="bleus"),
            "fails its own oracles: causal": starts(),
            "there is no field smalest": starts(smalest=1),
            "control is 'none'": starts(control="none"),
            "write {'runs': 200}": starts(budget={"hours": 1}),
            "smallest is 0": starts(smallest=0),
            "better is 'more'": starts(better="more"),
        }
    )


def test_a_seed_that_diverged_is_the_worse_one():
    nan = math.nan
    assert paired_differences([1.0, nan, 1.0, nan], [2.0, 1.0, nan, nan], -1) == [
        1.0,
        -math.inf,
        math.inf,
        0.0,
    ]
