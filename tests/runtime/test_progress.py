# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal, in a notebook and in a script, and the user's logging beside it."""

import logging
import sys
import types

import pytest

from transformer_jax.logs.run_log import Console
from transformer_jax.runtime.progress import (
    Progress,
    format_seconds,
    set_title,
    shown,
    sparkline,
    track,
)

PACKAGE = logging.getLogger("transformer_jax")


def train(**options):
    """Shows a line, steps, and a record, as a training does."""
    with shown(**options):
        PACKAGE.info("compiling")
        with Progress(400) as steps:
            for step in (100, 200):
                steps.advance(step)
                steps.report(f"step {step}/400 loss 3.2", "loss 3.2", 3.2 - step / 400)
        PACKAGE.warning("careful")


@pytest.fixture
def no_logging(monkeypatch):
    """A function that undoes what pytest configures, as in a program that configures nothing."""
    return lambda: monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_a_script_gets_lines_on_stderr(capsys, no_logging):
    no_logging()
    train()
    PACKAGE.info("not shown")
    out, err = capsys.readouterr()
    assert [line[9:] for line in err.splitlines()[:-1]] == [
        "compiling",
        "step 100/400 loss 3.2",
        "step 200/400 loss 3.2",
    ]
    assert err.splitlines()[-1] == "warning: careful" and out == ""


def test_a_level_without_a_handler_shows_nothing_by_itself(capsys, no_logging):
    no_logging()
    PACKAGE.setLevel(logging.INFO)  # undone before each test
    train()
    assert "compiling" in capsys.readouterr().err


def test_progress_that_is_not_wanted_is_not_shown(capsys, no_logging):
    no_logging()
    with shown(False):
        train()  # as a sweep trains its rows
    assert capsys.readouterr().err == "careful\n"  # by Python's own handler of warnings


def test_a_notebook_shows_nothing_unwanted(monkeypatch, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    with shown(False):
        train()
    assert cell.displayed == []


def test_the_users_handlers_get_what_they_got_before(caplog, capsys):
    before = PACKAGE.level, PACKAGE.propagate, list(PACKAGE.handlers)
    train()
    assert caplog.messages == ["careful"]
    assert "compiling" in capsys.readouterr().err
    assert (PACKAGE.level, PACKAGE.propagate, list(PACKAGE.handlers)) == before
    assert not PACKAGE.isEnabledFor(logging.INFO)


def test_lines_that_the_user_shows_are_not_shown_twice(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="transformer_jax"):
        train()
    assert caplog.messages[0] == "compiling" and "compiling" not in capsys.readouterr().err


def test_on_a_terminal_lines_stay_above_the_bar(monkeypatch, capsys, no_logging):
    no_logging()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train()
    err = capsys.readouterr().err
    assert "200/400" in err and "loss 3.2]" in err  # the bar
    kept = [line.rpartition("\r")[2] for line in err.split("\n")]
    assert any(line.endswith("step 100/400 loss 3.2") for line in kept)
    assert not any("%|" in line for line in kept)  # no bar stays


class Cell:
    """A notebook's cell: what was displayed, and its updates."""

    def __init__(self, monkeypatch):
        self.displayed, self.updates = [], []
        handle = types.SimpleNamespace(update=lambda data, raw: self.updates.append(data))

        def display(data, *, raw, display_id):
            self.displayed.append(data)
            return handle

        shell = types.SimpleNamespace(kernel=None)
        ipython = types.SimpleNamespace(get_ipython=lambda: shell)
        front = types.SimpleNamespace(display=display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", front)


def test_a_notebook_gets_one_line_that_updates(monkeypatch, capsys, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    train()
    assert [data["text/plain"] for data in cell.displayed] == ["compiling"]
    last = cell.updates[-1]
    assert last["text/plain"].startswith("step 200/400 · loss 3.2")
    assert "<svg" in last["text/html"]
    assert capsys.readouterr() == ("", "warning: careful\n")


def test_the_last_line_keeps_the_curve_and_a_part_its_title(monkeypatch, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    with shown():
        set_title("row 1/2")
        train()
        assert cell.updates[-1]["text/plain"].startswith("row 1/2 · step 200/400")
        PACKAGE.info("best bleu 98.3")
    assert cell.updates[-1]["text/plain"] == "best bleu 98.3"
    assert "<svg" in cell.updates[-1]["text/html"]


def test_a_table_of_evaluations_stays_in_the_cell(monkeypatch, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    with shown():
        console = Console(0, 60, "bleu")
        for step in range(1, 31):
            console.record(step, "train", {"loss": 9.5 - step / 8})
            console.record(step, "valid", {"loss": 3.0, "bleu": step / 40, "padding": 0.1})
        console.close()
        PACKAGE.info("best bleu <98>")
    page = cell.updates[-1]["text/html"]
    header = "<td>step</td><td>train loss</td><td>valid loss</td><td>valid bleu</td>"
    assert f"<table><caption>after 10 more</caption><tr>{header}</tr><tr><td>11</td>" in page
    assert page.endswith("<td>30</td><td>5.75</td><td>3</td><td>0.75</td></tr></table>")
    assert "best bleu &lt;98&gt;" in page


def test_parts_of_an_evaluation_are_tracked(monkeypatch, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    with shown():
        assert list(track([[1, 2], [3]], 3, "example")) == [[1, 2], [3]]
    assert cell.updates[-1]["text/plain"] == "example 3/3"


def test_an_evaluation_within_training_leaves_its_progress(monkeypatch, no_logging):
    no_logging()
    cell = Cell(monkeypatch)
    with shown(), Progress(400) as steps:
        steps.advance(1)
        list(track([[1, 2]], 2, "example"))
    assert "example" not in str(cell.displayed + cell.updates)


def test_a_lost_stderr_does_not_end_the_training(monkeypatch, no_logging):
    no_logging()
    monkeypatch.setattr(sys, "stderr", open("/dev/full", "w"))  # noqa: SIM115
    train()
    monkeypatch.setattr(sys, "stderr", None)
    train()


def test_a_sparkline_leaves_out_what_is_not_finite():
    points = sparkline([1.0, float("nan"), float("inf"), 0.0]).partition('points="')[2]
    assert points.startswith('1.0,1.0 119.0,19.0"')
    assert sparkline([1.0]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45s"), (720, "12m"), (3900, "1h05m"), (86400, "24h00m")]
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text
