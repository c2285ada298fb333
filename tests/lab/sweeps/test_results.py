# SPDX-License-Identifier: Apache-2.0
"""Results in the folders of sweeps: merged, of earlier versions, of other sweeps."""

import json
import math
from functools import partial
from unittest.mock import Mock

import pytest

import transformer_jax as tj
from tests.conftest import write_records
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.lab.sweeps import results, row_training, tables
from transformer_jax.lab.sweeps.results import encoded_result, merge_tables, saved_row
from transformer_jax.lab.sweeps.shared_folder import SweepFolder, folder_name
from transformer_jax.lab.sweeps.tables import Row, write_tables
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.workdir import SWEEP

ROWS = {"base": {}, "wide one": {"model.d_ff": 64}}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch, request):
    if request.function is not test_the_verb_table_prints_and_publishes:
        monkeypatch.setattr(tables, "_write_figure", lambda *_: None)


@pytest.fixture(scope="module")
def config():
    return resolve_file("quickstart", {})


def make_sweep(folder, losses, data=None, **changes):
    """Writes a folder as a sweep does, {row: loss of each seed}; a row's field may be changed."""
    sweep = tj.Sweep("quickstart", {name: {} for name in losses})
    rows = []
    for name, values in losses.items():
        settings = resolve_file("quickstart", ROWS.get(name, {}) | changes)
        rows.append(Row(name, {"loss": values}, parameters=10, tokens_per_s=5.0, seconds=60.0))
        place = folder / folder_name(name)
        place.mkdir(parents=True)
        asked = sweep.asked(settings, data=data)
        (place / "result.json").write_text(encoded_result(rows[-1], asked))
    (folder / SWEEP.mark).touch()
    write_tables(rows, folder)
    return folder


def test_tables_merge_rows(tmp_path, caplog):
    """A row that two folders have counts once, with the most seeds. Rows of another sweep are
    named."""
    first = make_sweep(tmp_path / "a", {"base": [1.0], "wide one": [3.0, math.nan]})
    second = make_sweep(tmp_path / "b", {"base": [1.0, 2.0], "new": [6.0, 7.0]})
    rows = merge_tables(first, second)
    assert [row.name for row in rows] == ["base", "wide one", "new"]
    assert rows[0].metrics["loss"] == [1.0, 2.0] and merge_tables(second, first)[0] == rows[0]
    assert rows.table().loc["wide one", "loss_mean"] == 3.0
    results.warn_of_other_rows(SweepFolder(first), ["base"])
    assert "holds rows that are not in this sweep: wide one; they are kept" in caplog.text


def test_tables_that_cannot_merge_are_refused(tmp_path):
    first = make_sweep(tmp_path / "a", {"base": [1.0, 2.0]})
    (tmp_path / "table.csv").write_text("row,loss_mean\n..,1\nlost,2\n")
    calls = {"holds no finished row of a sweep": lambda: merge_tables(tmp_path)}
    for name, row, changes, words in (
        ("config", "base", {"model.d_ff": 99}, "model.d_ff is 256 and 99"),
        ("seed", "base", {"seed": 2}, "seed is 0 and 2; leave one folder out, or rename the row"),
        ("data", "x", {"data.max_source_length": 9}, "not validated on the same examples"),
    ):
        other = make_sweep(tmp_path / name, {row: [1.0]}, **changes)
        calls[words] = partial(merge_tables, first, other)
    assert_refused(calls)


def test_rows_are_told_apart_by_the_content_of_their_data(tmp_path, config, caplog):
    data = {"training data": "1", "validation data": "2"}
    first = make_sweep(tmp_path / "a", {"base": [1.0]}, data=data)
    renamed = {"data.name": "multi30k_en_de", "data.dir": "b"}
    second = make_sweep(tmp_path / "b", {"x": [1.0]}, data=data, **renamed)
    assert len(merge_tables(first, second)) == 2
    validated = make_sweep(tmp_path / "c", {"x": [1.0]}, data=data | {"validation data": 3})
    trained = make_sweep(tmp_path / "d", {"base": [1.0]}, data=data | {"training data": 3})
    old = make_sweep(tmp_path / "e", {"base": [1.0]})
    assert len(merge_tables(first, old)) == 1
    assert_refused(
        {
            "examples: validation data is '2' and 3": lambda: merge_tables(first, validated),
            "training data is '1' and 3": lambda: merge_tables(first, trained),
        }
    )
    path = first / "base" / "result.json"
    sweep = tj.Sweep("quickstart", {"base": {}}, seeds=1)
    for now, is_finished in ((data, True), ({}, True), (data | {"validation data": "3"}, False)):
        assert bool(saved_row(path, "base", sweep.asked(config, data=now))) == is_finished
    assert "validation data is '2' and '3'; it is measured again" in caplog.text


def test_a_result_of_an_earlier_version_is_used_if_its_fields_have_todays_defaults(
    tmp_path, config, caplog
):
    folder = make_sweep(tmp_path / "a", {"base": [1.0, 2.0]})
    path = folder / "base" / "result.json"
    earlier = json.loads(path.read_text())
    del earlier["asked"]["config"]["optimizer"]["beta2"]
    path.write_text(json.dumps(earlier))
    asked = tj.Sweep("quickstart", {"base": {}}, seeds=2).asked(config)
    assert saved_row(path, "base", asked).metrics == {"loss": [1.0, 2.0]}
    changed = resolve_file("quickstart", {"optimizer.beta2": 0.5})
    asked = tj.Sweep("quickstart", {"base": {}}, seeds=2).asked(changed)
    assert saved_row(path, "base", asked) is None
    assert "another sweep: optimizer.beta2 is 0.98 and 0.5; it is measured again" in caplog.text


def test_a_metric_that_a_finished_row_lacks_is_read_from_its_records(tmp_path, config):
    """A seed that diverged after its last record has none."""
    folder = make_sweep(tmp_path / "a", {"base": [1.0, 2.0, math.nan]}) / "base"
    for seed in ("from_1/seed_1", "seed_2"):
        write_records(folder / seed, {"step": 3, "split": "valid", "loss": 2.0, "bleu": 31.0})
    more = tj.Sweep("quickstart", {"base": {}}, seeds=3, metrics=["loss", "bleu"])
    spec = row_training.RowSpec("base", config)
    (row,) = row_training.train_rows(more, {folder: spec}, 3, ())
    assert row.metrics["bleu"] == [None, 31.0, pytest.approx(math.nan, nan_ok=True)]
    saved = saved_row(folder / "result.json", "base", more.asked(config))
    assert saved.metrics["bleu"][:2] == [None, 31.0] and saved.diverged == [False, False, True]


def test_the_verb_table_prints_and_publishes(tmp_path, capsys):
    values = {"base": [1.0, 1.1], "far": [3.0, 3.1]}
    folder = make_sweep(tmp_path / "a", values)
    for number, loss in enumerate(values["far"]):
        record = {"step": 3, "split": "valid", "loss": loss}
        write_records(folder / "far" / f"seed_{number}", record)
    for _ in range(2):  # its own tables are replaced
        assert main(["table", str(folder), "--format=csv", f"--to={tmp_path / 'paper'}"]) == 0
    assert capsys.readouterr().out.startswith("row,loss_mean")
    forms = [f"table.{form}" for form in ("txt", "md", "tex", "csv", "png", "pdf", "svg")]
    vectors = [f"{name}.{form}" for name in ("curves", "differences") for form in ("pdf", "svg")]
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {*forms, *vectors, SWEEP.mark}
    assert main(["table", str(folder), f"--to={folder}"]) == 2
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "curves.pdf").write_text("mine")
    assert main(["table", str(folder), f"--to={tmp_path / 'own'}"]) == 2
    assert (tmp_path / "own" / "curves.pdf").read_text() == "mine"


def test_the_curves_of_several_folders_of_seeds_are_those_of_each(tmp_path, monkeypatch):
    """Such a folder, of `train --seeds`, is its only row."""
    losses = {"a": 1.0, "b": 2.0}
    for name, loss in losses.items():
        folder = make_sweep(tmp_path / name, {name: [loss]})
        (folder / name / "result.json").rename(folder / "result.json")
        write_records(folder / "seed_0", {"step": 3, "split": "valid", "loss": loss})
    publish = Mock()
    monkeypatch.setattr(tables, "publish_tables", publish)
    folders = [str(tmp_path / name) for name in losses]
    assert main(["table", *folders, f"--to={tmp_path / 'paper'}"]) == 0
    _, records, _ = publish.call_args.args
    assert {name: seeds["seed_0"][0]["loss"] for name, seeds in records.items()} == losses
