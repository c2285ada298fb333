# SPDX-License-Identifier: Apache-2.0
"""Sweeps: rows are trained, tabled, drawn, and not trained twice; their folders and files."""

import dataclasses
import logging
import math
import shutil
import sys
from functools import partial
from unittest.mock import Mock

import pytest

import transformer_jax as tj
from tests.conftest import records_of, write_records
from tests.refusals import assert_refused
from transformer_jax.data.sources import open_split
from transformer_jax.errors import DivergedError
from transformer_jax.lab.sweeps.definition import Sweep, load_sweep
from transformer_jax.lab.sweeps.results import saved_row, saved_rows
from transformer_jax.lab.sweeps.row_training import RowSpec, _measure, _seconds, plan_row
from transformer_jax.lab.sweeps.sweep import run_seeds, run_sweep
from transformer_jax.lab.sweeps.tables import Row, write_tables
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.workdir import SWEEP, lock_workdir
from transformer_jax.scoring.text import score_translations
from transformer_jax.tasks import TASKS
from transformer_jax.tokenization import load_tokenizers, train_tokenizers


@pytest.fixture(scope="module")
def sweep(tiny_language_model):
    steps = {"train.num_steps": 4, "eval.every_steps": 4, "logging.every_steps": 2}
    base = tiny_language_model | steps
    rows = {"as it is": {}, "few pairs": {"data.num_train_examples": 100}}
    longer = {"twice as long": {"data.max_length": 192}}
    metrics = ["loss", "perplexity"]
    return tj.Sweep("quickstart", rows, base, seeds=2, metrics=metrics, also=longer)


@pytest.fixture(scope="module")
def swept(sweep, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("sweep")
    return workdir, tj.sweep(sweep, workdir)


def test_a_row_has_its_metrics_for_each_seed(swept):
    workdir, rows = swept
    assert [row.name for row in rows] == ["as it is", "few pairs"]
    assert list(rows[0].metrics) == ["loss", "perplexity", "twice as long"]
    for row in rows:
        assert row.seeds == 2 and row.parameters > 1000 and row.tokens_per_s > 0 < row.seconds
    *_, last = records_of(workdir / "as_it_is" / "seed_1", "valid")
    assert rows[0].metrics["loss"][1] == last["loss"]
    # The same lines in longer rows have the same loss: sinusoids have no end.
    assert rows[0].metrics["twice as long"][1] == pytest.approx(last["loss"], rel=1e-4)


def test_tables_and_a_picture_are_written(swept):
    workdir, rows = swept
    text = (workdir / "table.txt").read_text()
    assert "few pairs" in text and f"{rows[0].mean('loss'):.3f}" in text
    table, differences, legend = (workdir / "table.md").read_text().split("\n\n")
    assert table.count("\n") == 3 and "few pairs" in differences and "differs from" in legend
    assert (workdir / "table.csv").read_text().startswith("row,loss_mean,loss_deviation")
    assert (workdir / "table.png").read_bytes().startswith(b"\x89PNG")


def test_finished_rows_and_seeds_are_not_trained_again(sweep, swept, tmp_path, monkeypatch, caplog):
    """Also if a module of the user's has changed, which is said."""
    workdir, rows = swept
    record = workdir / "few_pairs" / "seed_1" / "modules.json"
    record.write_text('[{"name": "tests.conftest", "sha256": "of its earlier code"}]')
    with monkeypatch.context() as patch:
        patch.setattr("transformer_jax.lab.sweeps.row_training.train_replicas", None)
        assert run_sweep(sweep, workdir) == rows == saved_rows(workdir)
    assert f"tests.conftest has changed since the run in {record.parent} was trained" in caplog.text
    record.unlink()
    assert saved_rows(workdir / "few_pairs") == saved_rows(tmp_path / "absent") == []
    seeds = shutil.copytree(workdir / "as_it_is", tmp_path / "seeds")
    (row,) = run_seeds(tj.config("quickstart", sweep.base), seeds, 2)  # of a plain config
    assert row.name == "seeds" and row.metrics == {"loss": rows[0].metrics["loss"]}
    assert tj.load(seeds / "seed_1").step == 4
    assert "seeds" in (seeds / "table.txt").read_text()


def test_more_seeds_train_beside_those_that_are_there(sweep, swept, tmp_path):
    workdir, saved = tmp_path / "more", swept[1][0]
    shutil.copytree(swept[0] / "as_it_is", workdir / "as_it_is")
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("*/seed_[01]/**/*")}
    more = dataclasses.replace(sweep, rows={"as it is": {}}, seeds=4)
    (row,) = run_sweep(more, workdir)
    assert row.seeds == 4 and row.seconds > saved.seconds
    assert run_sweep(more, workdir) == [row]  # from its file
    assert {path: path.stat().st_mtime_ns for path in workdir.glob("*/seed_[01]/**/*")} == before
    for name, values in row.metrics.items():
        assert values[:2] == saved.metrics[name]
    for seed in (2, 3):
        run = workdir / "as_it_is" / f"seed_{seed}"
        *_, last = records_of(run, "valid")
        assert row.metrics["loss"][seed] == last["loss"]
        assert row.metrics["perplexity"][seed] == last["perplexity"]
        assert row.metrics["twice as long"][seed] == pytest.approx(last["loss"], rel=1e-4)
        assert tj.load(run).config.seed == seed


def test_seeds_that_all_diverge_are_an_error(sweep, tmp_path, monkeypatch):
    lost = Row("seeds", {"loss": [math.nan, math.nan]}, parameters=0, tokens_per_s=1.0, seconds=1.0)
    monkeypatch.setattr("transformer_jax.lab.sweeps.sweep.train_rows", lambda *_: [lost])
    with pytest.raises(DivergedError, match="the loss of every seed is no longer finite"):
        run_seeds(tj.config("quickstart", sweep.base), tmp_path / "seeds", 2)
    assert "(2 of 2 diverged)" in (tmp_path / "seeds" / "table.txt").read_text()


def test_a_seed_that_diverges_before_its_first_record_is_a_result(sweep, tmp_path):
    (value,) = _measure(sweep, RowSpec("a", None), {tmp_path: None}, 1, 0.0).metrics["loss"]
    assert math.isnan(value)


def test_a_result_that_cannot_be_read_is_measured_again(sweep, swept, tmp_path, caplog):
    """A file of seconds that cannot be read counts as none."""
    one = Sweep(sweep.config, {"as it is": {}}, sweep.base, 2, sweep.metrics, sweep.also)
    folder = shutil.copytree(swept[0] / "as_it_is", tmp_path / "as_it_is")
    result = folder / "result.json"
    settings = one.configs()["as it is"]
    saved = partial(saved_row, result, "as it is", one.asked(settings))
    whole = result.read_text()
    expected = swept[1][0]
    assert saved() == expected
    for damaged in ("", whole[:99], whole.replace('"metrics": {', '"figures": {')):
        result.write_text(damaged)
        assert saved() is None
        told = "result.json is damaged or of an earlier version; it is measured again"
        assert told in caplog.text
        caplog.clear()
    (folder / "seconds").write_text("7000.0\n")
    (row,) = run_sweep(one, tmp_path)
    assert row == dataclasses.replace(saved(), seconds=row.seconds) and row.seconds > 7000
    assert row.metrics == expected.metrics and row.parameters == expected.parameters
    (folder / "seconds").write_text("")
    result.unlink()
    assert _seconds(plan_row(one, RowSpec("as it is", settings), folder)) == 0


def test_a_sweep_file_is_read_and_invalid_sweeps_are_refused(sweep, tmp_path):
    """Before any training."""

    def load(text, **options):
        (tmp_path / "sweep.py").write_text(text)
        return load_sweep(tmp_path / "sweep.py", **options)

    whole = "def get_sweep():\n    return dict(config='c', {})"
    assert load(whole.format("rows={'a': {}}, seeds=4")).seeds == 4
    assert load(whole.format("rows={'a': {}}, seeds=4"), seeds=2).seeds == 2
    texts = {
        "defines no get_sweep()": "x = 1",
        "fails: it calls exit()": "exit()",
        "fails: ZeroDivisionError": "def get_sweep():\n    return 1 / 0",
        "get_sweep() returns NoneType, not a dict": "def get_sweep():\n    return None",
        "is no field 3; the fields are config, rows": "def get_sweep():\n    return {3: 'a'}",
        "config": "def get_sweep():\n    return dict(rows={'a': {}})",
    }
    fields = {
        "did you mean rows?": "row={}",
        "at least one row": "rows={}",
        "rows is ['a'], not a dict of names": "rows=['a']",
        "rows: 'a' is 3, not a dict of overrides": "rows={'a': 3}",
        "rows has the name 3; write a text": "rows={3: {}}",
        "rows has the name '..'": "rows={'..': {}}",
        "also: 'b' is None, not a dict": "rows={'a': {}}, also={'b': None}",
        "metrics is 'loss'; give a list of names": "rows={'a': {}}, metrics='loss'",
        "seeds is '3'": "rows={'a': {}}, seeds='3'",
    }
    texts |= {words: whole.format(text) for words, text in fields.items()}
    calls = {words: partial(load, text) for words, text in texts.items()}
    calls["there is no sweep file"] = partial(load_sweep, tmp_path / "none.py")
    of = "rows of the sweep: "
    rows = {
        f"{of}ValueError: rows is None, not a dict": lambda base: None,
        f"{of}ValueError: rows has the name 3": lambda base: {3: {}},
        f"{of}ZeroDivisionError: division by zero": lambda base: 1 / 0,
        f"{of}it calls exit()": lambda base: sys.exit(0),
        "did you mean config.model.num_heads": {"bad": {"model.num_head": 1}},
        "differ only in punctuation": {"a b": {}, "a_b": {}},
    }
    wrong = {words: dict(rows=of_sweep, metrics=[]) for words, of_sweep in rows.items()}
    unknown = "row 'a': task language_modeling has no metric 'losss'"
    wrong[unknown] = dict(rows={"a": {}}, metrics=["losss"])
    changed = {words: dataclasses.replace(sweep, **fields) for words, fields in wrong.items()}
    calls |= {words: partial(run_sweep, of, tmp_path / "sweep") for words, of in changed.items()}
    assert_refused(calls)
    assert not (tmp_path / "sweep").exists()


def test_validation_records_the_metrics_that_its_task_names(trained_workdir):
    others = {"step", "split", "time", "overlong", "num_all_examples", "num_loss_examples"}
    others |= {"checkpoint", "sha256", *score_translations(["a"], ["a"])}
    *_, last = records_of(trained_workdir, "valid")
    assert last.keys() - others == {*TASKS["translation"].metrics}


def test_rows_may_depend_on_the_base_config_and_be_chosen(sweep):
    def rows(base):
        return {f"{n} heads": {"model.num_heads": n} for n in (1, 2 * base.model.num_heads)}

    relative = Sweep(sweep.config, rows, sweep.base)
    assert list(relative.configs()) == ["1 heads", "4 heads"]
    assert list(relative.with_base({"model.num_heads": 4}).configs("^8")) == ["8 heads"]
    with pytest.raises(tj.UserError, match="--rows=deep matches no name of a row"):
        relative.configs("deep")


MODULE = """
import numpy as np
from flax import linen as nn
from transformer_jax.nn.norms import NORMS
class Twice(nn.Module):
    epsilon: float
    @nn.compact
    def __call__(self, x):
        {}
NORMS.register("twice", Twice)
"""
BROKEN = "self.param('a', nn.initializers.ones, (1,)); self.param('a', nn.initializers.ones, (1,))"
TRACED = "return x if self.is_initializing() else np.asarray(x)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BROKEN, "config.model: {module}, line 9: NameInUseError: "),
        (TRACED, "{module}, line 9: TracerArrayConversionError: "),
    ],
    ids=["in its parameters", "in training"],
)
def test_all_models_are_traced_before_a_row_is_trained(sweep, tmp_path, forget_modules, text, told):
    module = tmp_path / "twice.py"
    module.write_text(MODULE.format(text))
    rows = {"fine": {}, "wrong": {"model.norm": "twice"}}
    with pytest.raises(tj.UserError) as caught:
        run_sweep(Sweep(sweep.config, rows, sweep.base), tmp_path / "swept", modules=module)
    message = str(caught.value)
    assert message.startswith(f"row 'wrong': {told.format(module=module)}")
    assert "\n" not in message and not (tmp_path / "swept").exists()


@pytest.mark.parametrize(
    "option, at_once, reason",
    [
        ({"eval.patience": 2}, 8, "config.eval.patience ends each at another step"),
        ({"train.on_spike": "rewind"}, 8, "config.train.on_spike 'rewind' takes each back"),
        ({}, 1, None),
    ],
)
def test_seeds_that_cannot_train_together_train_one_after_another(
    sweep, tmp_path, monkeypatch, caplog, option, at_once, reason
):
    caplog.set_level(logging.INFO)
    trained = []

    def train(config, folder, modules, until):
        trained.append(folder.relative_to(tmp_path).as_posix())
        write_records(folder, {"step": 1, "split": "valid", "loss": None})
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr("transformer_jax.lab.sweeps.row_training.train", train)
    one = Sweep(sweep.config, {"a row": option}, sweep.base, seeds=2)
    run_sweep(one, tmp_path, at_once=at_once)
    assert trained == ["a_row/seed_0", "a_row/seed_1"]
    told = f"a row: seeds are trained one after another: {reason}"
    assert (told in caplog.text) == (reason is not None)


def test_a_picture_that_fails_leaves_the_tables(tmp_path, monkeypatch, caplog):
    failing = Mock(side_effect=ValueError("no such glyph"))
    monkeypatch.setattr("transformer_jax.lab.pictures.draw_sweep", failing)
    write_tables([Row("a", {"loss": [1.0]}, 1, 1.0, 1.0)], tmp_path)
    names = ["table.csv", "table.md", "table.tex", "table.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "table.png is left out, the tables are written: no such glyph" in caplog.text


def test_any_name_can_be_drawn(tmp_path):
    names = ["$x^$", "a $ b", "$\\frac$ costs $5", "_hidden", "a|b\nc", "\x1b[31m"]
    rows = [Row(name, {"$loss_$": [1.0, 2.0]}, 1, 1.0, 1.0) for name in names]
    write_tables(rows, tmp_path)
    assert (tmp_path / "table.png").exists()
    markdown = (tmp_path / "table.md").read_text().splitlines()
    assert markdown.index("") == 2 + len(rows)
    assert markdown[6].startswith(r"| a\|b c | 1.500 ± 0.707")
    assert markdown[7].startswith(r"| \x1b[31m | ")


def contents(folder, leave_out=()):
    """Contents of all files except marks and `leave_out`."""
    names = {".transformer_jax", SWEEP.mark, *leave_out}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in names]
    return {path: path.read_bytes() for path in files}


def test_a_seed_trained_by_itself_is_used(sweep, swept, tmp_path):
    workdir = tmp_path / "seeds"
    shutil.copytree(swept[0] / "as_it_is" / "seed_0", workdir / "seed_0")
    before = contents(workdir / "seed_0" / "checkpoints")
    (row,) = run_seeds(tj.config("quickstart", sweep.base), workdir, 2)
    assert row.metrics["loss"] == pytest.approx(swept[1][0].metrics["loss"], rel=1e-5)
    assert contents(workdir / "seed_0" / "checkpoints") == before


def test_seeds_of_other_configs_are_not_overwritten(trained_workdir, tiny_config, tmp_path):
    """Nor is a run trained in the workdir of seeds."""
    seeds = tmp_path / "seeds"
    shutil.copytree(trained_workdir, seeds / "seed_0")
    (seeds / SWEEP.mark).touch()
    before = contents(seeds)
    wide = tiny_config({"model.d_ff": 48})
    fast = tiny_config({"optimizer.learning_rate": 0.5})
    train = partial(tj.train, tiny_config(), seeds)
    assert_refused(
        {
            "seed_0 holds another run: its model": partial(run_seeds, wide, seeds, 3),
            "seed_0 holds another run: its optimizer": partial(run_seeds, fast, seeds, 3),
            "seeds holds a sweep; choose another --workdir for a r": train,
        }
    )
    (seeds / SWEEP.mark).unlink()  # earlier versions set none
    (seeds / "result.json").write_text("{}")
    assert_refused({"seeds holds a sweep": train})
    (seeds / "result.json").unlink()
    assert contents(seeds, leave_out=["seconds"]) == before


def test_seeds_are_not_trained_in_folders_of_others(workdir, tmp_path, tiny_config):
    """Of a run, of a run that begins, of a sweep that another process trains, of the user."""
    folders = {
        f"{workdir} holds a run; choose another --workdir for a sweep": workdir,
        f"{workdir} holds a run": workdir / "seeds",
        "begins holds a run": tmp_path / "begins",
        "is training there": tmp_path / "busy",
    }
    for number, name in enumerate(("config.json", "table.txt", "seconds", "seed_1/config.json")):
        own = tmp_path / str(number)
        (own / name).parent.mkdir(parents=True)
        (own / name).write_text("mine")
        folders[f"{(own / name).parent} holds {(own / name).name}, and no mark"] = own
    before = contents(tmp_path)
    train = partial(run_seeds, tiny_config(), count=2)
    calls = {words: partial(train, workdir=folder) for words, folder in folders.items()}
    with lock_workdir(tmp_path / "begins"), lock_workdir(tmp_path / "busy", SWEEP):
        assert_refused(calls)
    assert contents(tmp_path) == before


def test_rows_of_equal_data_and_settings_share_a_tokenizer(sweep, tmp_path, monkeypatch):
    def prepared(config, folder, modules, until):  # no more of a run is needed
        settings = read_settings(config)
        build_tokenizers(settings, folder / "tokenizer", open_split(settings.data, "train"))
        write_records(folder, {"step": 1, "split": "valid", "loss": math.nan})
        raise DivergedError("not trained")

    train = Mock(wraps=train_tokenizers)
    monkeypatch.setattr("transformer_jax.runs.prepare.train_tokenizers", train)
    monkeypatch.setattr("transformer_jax.lab.sweeps.row_training.train", prepared)
    rows = {
        "one": {},
        "another rate": {"optimizer.learning_rate": 0.01},
        "longer rows": {"data.max_length": 40},
        "other data": {"data.num_train_examples": 100},
        "smaller": {"tokenizer.vocab_size": 20},
    }
    run_sweep(dataclasses.replace(sweep, rows=rows, seeds=1), tmp_path / "sweep", at_once=1)
    assert train.call_count == 3 and train.call_args.args[0].vocab_size == 20
    one, another, other = (
        load_tokenizers(tmp_path / "sweep" / name / "seed_0" / "tokenizer").sha256
        for name in ("one", "another_rate", "smaller")
    )
    assert one == another != other
    run_sweep(dataclasses.replace(sweep, rows={"one": {}}, seeds=1), tmp_path / "new")
    assert train.call_count == 4  # the next sweep may have other modules
