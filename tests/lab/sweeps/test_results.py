# SPDX-License-Identifier: Apache-2.0
"""Results in the folders of sweeps: merged, of earlier versions, of other sweeps."""

import dataclasses
import json
import math

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.lab.sweeps import results, row_training, table_files
from transformer_jax.lab.sweeps.results import asked_of, encoded_result, merge_tables, saved_row
from transformer_jax.lab.sweeps.shared_folder import SweepFolder, folder_name
from transformer_jax.lab.sweeps.table_files import write_tables
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.workdir import SWEEP

ROWS = {"base": {}, "wide one": {"model.d_ff": 64}}


@pytest.fixture(autouse=True)
def no_figures(monkeypatch, request):
    if "figures" not in request.fixturenames:
        monkeypatch.setattr(table_files, "_write_figure", lambda *_: None)


@pytest.fixture
def figures():
    """Lets a test write figures."""


@pytest.fixture(scope="module")
def config():
    return resolve_file("quickstart", {})


def make_sweep(folder, config, losses, seeds=2, **changes):
    """Writes a folder as a sweep does, {row: loss of each seed}; a row's field may be changed."""
    sweep = tj.Sweep("quickstart", {name: {} for name in losses}, seeds=seeds)
    rows = []
    for name, values in losses.items():
        own = resolve_file("quickstart", ROWS.get(name, {}) | changes)
        metrics = values if isinstance(values, dict) else {"loss": values}
        rows.append(Row(name, metrics, parameters=10, tokens_per_s=5.0, seconds=60.0))
        place = folder / folder_name(name)
        place.mkdir(parents=True)
        asked = asked_of(dataclasses.replace(sweep, seeds=rows[-1].seeds), own)
        (place / "result.json").write_text(encoded_result(rows[-1], asked))
    (folder / SWEEP.mark).touch()
    write_tables(rows, folder)
    return folder


def test_tables_merge_rows_and_seeds(tmp_path, config):
    first = make_sweep(tmp_path / "a", config, {"base": [1.0, 2.0], "wide one": [3.0, math.nan]})
    second = make_sweep(tmp_path / "b", config, {"wide one": [4.0, 5.0], "new": [6.0, 7.0]}, seed=2)
    again = make_sweep(tmp_path / "c", config, {"base": {"loss": [1.0, 2.0], "bleu": [9.0, None]}})
    rows = merge_tables(first, second, again)
    assert [row.name for row in rows] == ["base", "wide one", "new"]
    assert rows[0].metrics["loss"] == [1.0, 2.0] and rows[0].seconds == 60
    assert rows[1].metrics["loss"][2:] == [4.0, 5.0] and rows[1].seconds == 120
    assert merge_tables(first, again, first)[0].seeds == 2
    assert rows.table().loc["wide one", "loss_mean"] == 4.0


@pytest.mark.parametrize(
    ("losses", "changes", "message"),
    [
        ({"base": [1.0]}, {"model.d_ff": 99}, "row 'base' has different configs .*model.d_ff is"),
        ({"base": [1.5]}, {}, "seed 0 of row 'base' has another loss .*1.0 and 1.5; leave one"),
        ({"x": [1.0]}, {"data.max_source_length": 9}, "not validated on the same .*max_source_len"),
    ],
)
def test_tables_that_cannot_merge_are_refused(tmp_path, config, losses, changes, message):
    first = make_sweep(tmp_path / "a", config, {"base": [1.0, 2.0]})
    other = make_sweep(tmp_path / "b", config, losses, **changes)
    with pytest.raises(tj.UserError, match=message) as caught:
        merge_tables(first, other)
    assert "\n" not in str(caught.value)


def test_a_folder_without_rows_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("row,loss_mean\n..,1\nlost,2\n")
    with pytest.raises(tj.UserError, match="holds no finished row of a sweep"):
        merge_tables(tmp_path)


def test_a_result_of_an_earlier_version_is_used_if_its_fields_have_todays_defaults(
    tmp_path, config, caplog
):
    folder = make_sweep(tmp_path / "a", config, {"base": [1.0, 2.0]})
    path = folder / "base" / "result.json"
    earlier = json.loads(path.read_text())
    del earlier["asked"]["config"]["optimizer"]["beta2"]
    path.write_text(json.dumps(earlier))
    asked = asked_of(tj.Sweep("quickstart", {"base": {}}, seeds=2), config)
    assert saved_row(path, "base", asked).metrics == {"loss": [1.0, 2.0]}
    changed = resolve_file("quickstart", {"optimizer.beta2": 0.5})
    asked = asked_of(tj.Sweep("quickstart", {"base": {}}, seeds=2), changed)
    assert saved_row(path, "base", asked) is None
    assert "another sweep: optimizer.beta2 is 0.98 and 0.5; it is measured again" in caplog.text


def test_rows_of_another_sweep_are_named(tmp_path, config, caplog):
    folder = make_sweep(tmp_path / "a", config, {"base": [1.0, 2.0], "wide one": [1.0, 2.0]})
    results.warn_of_other_rows(SweepFolder(folder), ["base"])
    assert "holds rows that are not in this sweep: wide one; they are kept" in caplog.text


def test_a_metric_that_a_finished_row_lacks_is_read_from_its_records(tmp_path, config):
    folder = make_sweep(tmp_path / "a", config, {"base": [1.0, 2.0]}) / "base"
    (folder / "from_1" / "seed_1").mkdir(parents=True)
    record = {"step": 3, "split": "valid", "loss": 2.0, "bleu": 31.0}
    (folder / "from_1" / "seed_1" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    more = tj.Sweep("quickstart", {"base": {}}, seeds=2, metrics=["loss", "bleu"])
    row = row_training.train_row(more, "base", config, folder, 2, ())
    assert row.metrics == {"loss": [1.0, 2.0], "bleu": [None, 31.0]}
    assert saved_row(folder / "result.json", "base", asked_of(more, config)) == row


def test_the_verb_table_prints_and_publishes(tmp_path, config, capsys, figures):
    values = {"base": [1.0, 1.1], "far": [3.0, 3.1]}
    folder = make_sweep(tmp_path / "a", config, values)
    for number, loss in enumerate(values["far"]):
        run = folder / "far" / f"seed_{number}"
        run.mkdir()
        record = {"step": 3, "split": "valid", "loss": loss}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
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
