# SPDX-License-Identifier: Apache-2.0
"""Reproductions: which statements hold, what is trained once, what is written and refused."""

import csv
import dataclasses
import json

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.lab.evidence.reproduction import Reproduction, load_reproduction, reproduce
from transformer_jax.lab.evidence.statements import Comparison, decide_statements
from transformer_jax.runs.shipped import shipped_files

SWEEP = """
def get_sweep():
    return dict(config="quickstart", base={base!r}, rows={{
        "learns": {{}}, "hardly": {{"optimizer.learning_rate": 1e-9, "model.dropout_rate": 0.3}}
    }}, seeds=2, metrics=["loss"])
"""
EXACT = """
'''A table.'''

def get_reproduction():
    return dict(title="A table", published={"base": {"cost": 10.0}, "big": {"cost": 20.0}},
                compute=lambda: {"base": {"counted": 10.1}, "big": {"counted": 30.0}},
                statements={
                    "It is counted.": [(row, row, "counted", "equal", "published cost")
                                       for row in ("base", "big")],
                    "Big costs more.": [("big", "base", "counted", "higher")]},
                notes=["A note."])
"""


def drawn(gap, deviation, seeds=3):
    """Values of a base of 10 and of a row that is `gap` higher."""
    rng = np.random.default_rng(0)
    values = {"base": 10.0, "row": 10.0 + gap}
    return {
        name: {"m": list(mean + deviation * rng.normal(size=seeds))}
        for name, mean in values.items()
    }


@pytest.mark.parametrize(
    "expected, gap, deviation, verdict",
    [
        ("higher", 1.0, 0.01, "holds"),
        ("lower", 1.0, 0.01, "does not hold"),
        ("higher", 0.1, 1.0, "undecided"),
        ("equal", 0.0, 0.01, "holds"),
        ("equal", 1.0, 0.01, "does not hold"),
        ("equal", 0.2, 0.1, "undecided"),
    ],
)
def test_a_comparison_is_decided_by_its_interval(expected, gap, deviation, verdict):
    statements = {"It is so.": [Comparison("row", "base", "m", expected)]}
    (found,) = decide_statements(statements, drawn(gap, deviation), 0.02, exact=False)
    assert found.verdict == verdict
    (outcome,) = found.outcomes
    assert outcome.low < outcome.difference < outcome.high
    needs = verdict == "undecided" and expected != "equal"
    assert (outcome.seeds_to_decide is not None) == needs


def test_a_statement_holds_if_all_its_comparisons_do():
    values = drawn(1.0, 0.01) | {"other": {"m": [9.0, 9.01, 9.02]}, "alone": {"m": [1.0]}}
    row, other, alone = (
        Comparison(name, "base", "m", "higher") for name in ("row", "other", "alone")
    )
    statements = {"both": [row, other], "one": [row], "missing": [row, alone], "none": [alone]}
    found = decide_statements(statements, values, 0.02, exact=False)
    assert [one.verdict for one in found] == ["does not hold", "holds", "undecided", "undecided"]
    assert "too few values" in found[-1].outcomes[0].line()


def test_comparisons_with_one_base_are_corrected_together():
    values = drawn(0.5, 0.3) | {f"row {i}": drawn(0.0, 0.3)["base"] for i in range(20)}
    one = {"one": [Comparison("row", "base", "m", "higher")]}
    many = one | {"many": [Comparison(f"row {i}", "base", "m", "higher") for i in range(20)]}
    alone, among = (decide_statements(each, values, 0.02, exact=False)[0] for each in (one, many))
    assert alone.outcomes[0].p_adjusted < 0.05 < among.outcomes[0].p_adjusted
    assert (alone.verdict, among.verdict) == ("holds", "undecided")


def test_the_shipped_files_name_the_rows_of_their_sweeps():
    found = {name: load_reproduction(name) for name in shipped_files("reproduction")}
    assert list(found) == ["bahdanau2015/figure2", "vaswani2017/table2", "vaswani2017/table3"]
    for item in found.values():
        for scale in item.scales:
            names = item.row_names(item.sweep_at(scale, "", None), {})
            assert len(set(names.values())) == len(item.published)


def test_exact_values_are_compared_without_a_test(tmp_path, capsys):
    path = tmp_path / "table.py"
    path.write_text(EXACT)
    assert main(["reproduce", str(path), f"--workdir={tmp_path / 'run'}"]) == 0
    text = capsys.readouterr().out
    assert "DOES NOT HOLD: It is counted." in text and "HOLDS: Big costs more." in text
    assert "base, published cost? +0.1 (+1.0%): holds" in text and text.endswith("A note.\n")
    assert main(["reproduce", str(path), "--format=markdown"]) == 0
    assert "| big | 20 | 30 |" in capsys.readouterr().out
    assert main(["reproduce", str(path), "--scale=tiny"]) == 2
    assert "trains nothing" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tiny_language_model, tmp_path_factory):
    """A reproduction of two trained rows, its workdir, the report, and the measured runs."""
    folder = tmp_path_factory.mktemp("papers")
    base = tiny_language_model | {"train.num_steps": 24, "eval.every_steps": 24}
    base |= {"checkpoint.every_steps": 24}
    sweep = folder / "pair.py"
    sweep.write_text(SWEEP.format(base=base))
    measured = []

    def measure(run):
        measured.append(run.workdir)
        return {"short": float(run.config.seed), "long": run.config.seed + 0.5}

    item = Reproduction(
        title="A table",
        published={"learns": {"loss": 1.0}, "hardly": {"loss": 2.0}},
        statements={"Learning helps.": [("hardly", "learns", "loss", "higher")]},
        sweep=str(sweep),
        scales={"tiny": ("quickstart", {})},
        measure=measure,
        curve=("short", "long"),
        axes=("length", "score"),
        name="mine/table",
    )
    return item, folder / "run", reproduce(item, folder / "run", progress=False), measured


def test_rows_are_trained_measured_and_reported(trained):
    item, workdir, found, measured = trained
    assert [one.verdict for one in found.statements] == ["holds"]
    assert len(measured) == 4
    saved = json.loads((workdir / "reproduction.json").read_text())
    assert saved == json.loads(json.dumps(found.as_json()))
    assert [row["values"]["short"] for row in saved["rows"]] == [[0, 1], [0, 1]]
    lines = list(csv.DictReader((workdir / "reproduction.csv").open()))
    assert [line["published"] for line in lines if line["metric"] == "loss"] == ["1.0", "2.0"]
    low, mean, high = (float(lines[1][name]) for name in ("low", "difference", "high"))
    assert 0 < low < mean < high
    assert "| learns | 1 |" in (workdir / "reproduction.md").read_text()
    assert (workdir / "reproduction.png").read_bytes().startswith(b"\x89PNG")


def test_a_repeated_call_trains_and_measures_nothing(trained):
    item, workdir, found, measured = trained
    before = len(measured)
    again = reproduce(item, workdir, progress=False)
    assert len(measured) == before and again.rows == found.rows
    changed = dataclasses.replace(item, digest="another measure")
    assert reproduce(changed, workdir, progress=False).rows == found.rows
    assert len(measured) == 2 * before


def test_the_workdir_of_another_reproduction_is_refused(trained):
    item, workdir, *_ = trained
    other = dataclasses.replace(item, name="mine/other")
    with pytest.raises(tj.UserError, match="another reproduction: its item is 'mine/table'"):
        reproduce(other, workdir)
    with pytest.raises(tj.UserError, match="another reproduction: its overrides"):
        reproduce(item, workdir, {"train.num_steps": 9})


def test_the_verb_lists_and_suggests(tmp_path, capsys):
    assert main(["reproduce"]) == 0
    assert "vaswani2017/table3    Table 3 of" in capsys.readouterr().out
    for words, message in (
        (["vaswani2017/tabel3"], "did you mean vaswani2017/table3?"),
        (["vaswani/table3"], "did you mean vaswani2017/table3?"),
        (["nobody/nothing"], "shipped are bahdanau2015/figure2"),
        (["bahdanau2015/figure2"], "give a --workdir"),
        (["bahdanau2015/figure2", f"--workdir={tmp_path}", "--scale=tny"], "did you mean tiny?"),
        (["vaswani2017/table3", f"--workdir={tmp_path}", "--scale=tiny", "--config=x"], "--config"),
        (
            ["vaswani2017/table3", f"--workdir={tmp_path}", "--config.model.num_heads=2"],
            "the sweep has",
        ),
    ):
        assert main(["reproduce", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"published": {}}, "has no row"),
        ({"sweep": ""}, "either a sweep"),
        ({"scales": {}}, "scales is empty"),
        ({"statements": {"x": [("bsae", "base", "m", "lower")]}}, "did you mean base"),
        ({"statements": {"x": [("base", "base", "m", "below")]}}, "'below' is none of"),
    ],
)
def test_files_that_make_no_sense_are_refused(changes, message):
    fields = {"title": "x", "published": {"base": {"m": 1.0}}, "statements": {}, "sweep": "norms"}
    with pytest.raises(ValueError, match=message):
        Reproduction(**{**fields, "scales": {"tiny": ("quickstart", {})}, **changes})
