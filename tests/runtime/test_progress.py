# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal, in a notebook and in a script, and the user's logging beside it."""

import logging
import sys
from unittest.mock import Mock

import pytest

from transformer_jax.logs.run_log import Console
from transformer_jax.runtime.progress import Progress, shown, track

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


def configure_no_logging(monkeypatch):
    """Undoes what pytest configures, as in a program that configures nothing."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def notebook_cell(monkeypatch):
    """Mock of IPython in a notebook's cell; its `update` changes what is displayed."""
    configure_no_logging(monkeypatch)
    cell = Mock()
    cell.display.return_value = cell
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, cell)
    return cell


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_a_script_gets_lines_on_stderr(capsys, monkeypatch, level):
    configure_no_logging(monkeypatch)
    PACKAGE.setLevel(level)  # without a handler; undone before each test
    train()
    PACKAGE.info("not shown")
    out, err = capsys.readouterr()
    *lines, last = err.splitlines()
    steps = ["step 100/400 loss 3.2", "step 200/400 loss 3.2"]
    assert [line[9:] for line in lines] == ["compiling", *steps]
    assert last == "warning: careful" and out == ""


def test_progress_that_is_not_wanted_is_not_shown(capsys, monkeypatch):
    configure_no_logging(monkeypatch)
    with shown(False):
        train()  # as a sweep trains its rows
    assert capsys.readouterr().err == "careful\n"  # by Python's own handler of warnings
    cell = notebook_cell(monkeypatch)
    with shown(False):
        train()
    assert not cell.display.called


def test_the_users_handlers_get_what_they_got_before_and_nothing_is_shown_twice(caplog, capsys):
    before = PACKAGE.level, PACKAGE.propagate, list(PACKAGE.handlers)
    train()
    assert caplog.messages == ["careful"]
    assert "compiling" in capsys.readouterr().err
    assert (PACKAGE.level, PACKAGE.propagate, list(PACKAGE.handlers)) == before
    caplog.set_level(logging.INFO, logger="transformer_jax")
    train()
    assert caplog.messages[1] == "compiling" and "compiling" not in capsys.readouterr().err


def test_a_handler_that_a_library_adds_is_not_the_users(monkeypatch, capsys):
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))  # as absl's, with Orbax
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    train()
    assert "warning: careful\n" in capsys.readouterr().err


def test_on_a_terminal_lines_stay_above_the_bar(monkeypatch, capsys):
    configure_no_logging(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train()
    err = capsys.readouterr().err
    assert "200/400" in err and "loss 3.2]" in err  # the bar
    kept = [line.rpartition("\r")[2] for line in err.split("\n")]
    assert any(line.endswith("step 100/400 loss 3.2") for line in kept)
    assert not any("%|" in line for line in kept)  # no bar stays


def test_a_notebook_gets_one_line_that_updates(monkeypatch, capsys):
    cell = notebook_cell(monkeypatch)
    train()
    assert [call.args[0]["text/plain"] for call in cell.display.call_args_list] == ["compiling"]
    last = cell.update.call_args.args[0]
    assert last["text/plain"].startswith("step 200/400 · loss 3.2")
    assert "<svg" in last["text/html"]
    assert capsys.readouterr() == ("", "warning: careful\n")


def test_a_table_of_evaluations_stays_in_the_cell(monkeypatch):
    cell = notebook_cell(monkeypatch)
    with shown():
        console = Console(0, 60, "bleu")
        for step in range(1, 31):
            console.record(step, "train", {"loss": 9.5 - step / 8})
            console.record(step, "valid", {"loss": 3.0, "bleu": step / 40, "padding": 0.1})
        console.close()
        PACKAGE.info("best bleu <98>")
    page = cell.update.call_args.args[0]["text/html"]
    header = "<td>step</td><td>train loss</td><td>valid loss</td><td>valid bleu</td>"
    assert f"<table><caption>after 10 more</caption><tr>{header}</tr><tr><td>11</td>" in page
    assert page.endswith("<td>30</td><td>5.75</td><td>3</td><td>0.75</td></tr></table>")
    assert "best bleu &lt;98&gt;" in page


def test_an_evaluation_is_tracked_unless_it_is_within_a_training(monkeypatch):
    cell = notebook_cell(monkeypatch)
    with shown(), Progress(400) as steps:
        steps.advance(1)
        list(track([[1, 2]], 2, "example"))
    assert "step 1/400" in str(cell.mock_calls) and "example" not in str(cell.mock_calls)
    with shown():
        assert list(track([[1, 2], [3]], 3, "example")) == [[1, 2], [3]]
    assert cell.update.call_args.args[0]["text/plain"] == "example 3/3"


def test_a_lost_stderr_does_not_end_the_training(monkeypatch):
    configure_no_logging(monkeypatch)
    monkeypatch.setattr(sys, "stderr", open("/dev/full", "w"))  # noqa: SIM115
    train()
    monkeypatch.setattr(sys, "stderr", None)
    train()
