# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: exit statuses, output streams, and calls of the API."""

import errno
import json
import logging
import os
import resource
import select
import subprocess
import sys
import tomllib
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from tests.conftest import ROOT
from transformer_jax.cli import terminal
from transformer_jax.cli.main import main
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.errors import Interrupted, Stopped, UserError


def program(*words):
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax", *words], capture_output=True, text=True
    )


@pytest.fixture
def api(monkeypatch):
    """A fake of the API that verbs import when they run."""
    stand_in = SimpleNamespace()
    for name in ("load", "train"):
        monkeypatch.setitem(sys.modules, f"transformer_jax.runs.{name}", stand_in)
    monkeypatch.setattr("transformer_jax.cli.main.log_to_stderr", lambda: None)
    return stand_in


def test_help_and_version_go_to_stdout(capsysbinary):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = f"transformer_jax {project['version']} (jax 0."
    usage = "usage: python -m transformer_jax"
    calls = {"--help": usage, "predict --help": usage, "benchmark train -h": usage}
    for words, start in (calls | {"--version": version}).items():
        with pytest.raises(SystemExit) as caught:
            main(words.split())
        printed = capsysbinary.readouterr().out.decode()
        assert caught.value.code == 0 and printed.startswith(start)
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}." in printed


def test_help_takes_less_than_two_seconds_of_the_processor():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert program("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_neither_the_package_nor_the_shell_imports_jax():
    heavy = "{'jax', 'numpy', 'tensorboardX', 'tqdm'}"
    code = f"import sys, transformer_jax.cli.main; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_console_script_executes_no_file_of_the_current_folder(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["transformer_jax"].partition(":")
    script = tmp_path / "bin" / "transformer_jax"  # as pip writes it
    foreign = tmp_path / "foreign" / "argparse.py"
    for path, text in (
        (script, f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"),
        (foreign, "print('executed')\n"),
    ):
        path.parent.mkdir()
        path.write_text(text)
    words = [sys.executable, str(script), "evaluate", "--help"]
    options = {"cwd": foreign.parent, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    answer = subprocess.run(words, capture_output=True, text=True, **options)
    assert answer.returncode == 0
    assert answer.stdout.startswith("usage: transformer_jax evaluate")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/full/metrics.jsonl")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("no run in x:\ntrain one"), 2, "error: no run in x:\\ntrain one\n"),
        (FULL, 2, "error: runs/full/metrics.jsonl: No space left on device\n"),
        (MemoryError("9 TiB"), 2, "error: out of memory: 9 TiB\n"),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 TiB"), 2, "error: out of memory: RESOURCE_EXHAUST"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped("stopped by SIGTERM at step 3, saved"), 75, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_a_status_and_one_line(api, capsys, error, status, message):
    api.load = Mock(side_effect=error)
    assert main(["evaluate", "--workdir=x"]) == status
    told = capsys.readouterr().err
    assert told.startswith(message) and told.count("\n") == bool(message)


def test_an_interrupted_training_says_how_to_continue(api, capfd, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(terminal, "was_interrupted", lambda: True)
    errors = {
        KeyboardInterrupt(): "interrupted; the same command continues",
        SystemError("of compiled code"): "interrupted; the same command continues",
        Interrupted("at step 3, saved"): "at step 3, saved",
    }
    for error, message in errors.items():
        monkeypatch.setattr("transformer_jax.runs.config.resolve_file", Mock(side_effect=error))
        assert main(["train", "--config=quickstart", "--workdir=x"]) == 130
        assert message in capfd.readouterr().err + caplog.text
        caplog.clear()


def test_other_errors_are_raised_unless_an_interrupt_caused_them(api, capsys, monkeypatch):
    for error in (SystemError("<built-in>"), OSError("of a library"), KeyError("size")):
        api.load = Mock(side_effect=error)
        with pytest.raises(type(error)):
            main(["evaluate", "--workdir=x"])
        with monkeypatch.context() as patch:
            patch.setattr(terminal, "was_interrupted", lambda: True)
            assert main(["evaluate", "--workdir=x"]) == 130
    assert capsys.readouterr().err == ""


def test_devices_that_cannot_start_are_reported_by_every_verb(api, capsys, monkeypatch):
    api.load = Mock(side_effect=RuntimeError("of a backend"))
    refusal = Mock(side_effect=UserError("JAX_PLATFORMS=abacus cannot be used"))
    monkeypatch.setattr("transformer_jax.runtime.platform.require_device", refusal)
    assert main(["export", "--workdir=w", "--to=d", "--format=hf"]) == 2
    assert capsys.readouterr().err == "error: JAX_PLATFORMS=abacus cannot be used\n"


def test_a_long_value_does_not_make_a_long_line(capsys):
    assert main(["evaluate", "--workdir=w", "9" * 99999]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: unexpected argument 999")
    assert message.endswith("--FLAG=VALUE\n") and len(message) < 1100


def test_predict_answers_at_once_and_is_quiet_when_the_reader_leaves(capitals, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(capitals, **pipes) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        answered, _, _ = select.select([process.stdout], [], [], 300)
        if not answered:
            process.kill()
        assert process.stdout.readline() == b"ONE\n"
        process.stdout.close()
        process.stdin.write(b"two\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_flags_reach_the_run(api, shell):
    run = Mock(task=None)
    run.with_config.return_value = run.patched.return_value = run
    run.evaluate.return_value = {"bleu": 31.5, "loss": float("inf")}
    run.n_best.return_value = [[SimpleNamespace(text=text, score=-1.5)] for text in ("GRÜN", "A")]
    api.load = Mock(return_value=run)
    answer = shell("evaluate", "--workdir=w", "--checkpoint=best", "--average=3")
    assert json.loads(answer.out) == {"bleu": 31.5, "loss": None}
    places = ["encoder.layer_0.self_attention.heads[1]", "decoder.layer_*"]
    flags = [f"--patch={places[0]}=0", f"--patch={places[1]}=0.5", "--max_length=96"]
    flags += ["--source=s", "--target=t", "--beam_size=2", "--modules=my.py,mine.positions"]
    assert shell("evaluate", "--workdir=w", *flags, "--base=b").status == 0
    fields = ("data.max_length", "data.max_source_length", "data.max_target_length")
    run.with_config.assert_called_once_with(dict.fromkeys(fields, 96))
    run.patched.assert_called_once_with(dict(zip(places, (0.0, 0.5), strict=True)))
    assert run.evaluate.call_args_list == [call(), call(source="s", target="t", beam_size=2)]
    words = ("predict", "--workdir=w", "--format=jsonl", "--alpha=0.8")
    answer = shell(*words, stdin="grün\na\\nb\n".encode())
    run.n_best.assert_called_once_with(["grün", "a\\nb"], first_line=1, alpha=0.8)
    texts = [json.loads(line)["outputs"] for line in answer.out.splitlines()]
    assert texts == [[{"text": "GRÜN", "score": -1.5}], [{"text": "A", "score": -1.5}]]
    modules = ["my.py", "mine.positions"]
    assert api.load.call_args_list == [
        call("w", checkpoint="best", average=3, modules=(), base=None),
        call("w", checkpoint="latest", average=None, modules=modules, base="b"),
        call("w", checkpoint="latest", average=None, modules=(), base=None),
    ]
    refused = shell("predict", "--workdir=x", "--num_outputs=2")
    assert refused.status == 2 and "--format=jsonl" in refused.err


def test_lines_are_numbered_from_the_first_of_all_chunks(api, shell, monkeypatch, tmp_path):
    monkeypatch.setattr("transformer_jax.cli.verbs._LINES_AT_ONCE", 2)
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    run = Mock(task=None)
    run.pair_scores.return_value = run.embed.return_value = []
    run.n_best.side_effect = lambda lines, first_line: [[Mock(text=line)] for line in lines]
    api.load = Mock(return_value=run)
    files = [f"--source={path}", f"--target={path}"]
    assert shell("score", "--workdir=w", *files).status == 0
    for verb in ("predict", "embed"):
        assert shell(verb, "--workdir=w", stdin=path.read_bytes()).status == 0
    for of_lines in (run.n_best, run.pair_scores, run.embed):
        assert [one.kwargs["first_line"] for one in of_lines.call_args_list] == [1, 3]


def test_messages_go_to_stderr_without_those_of_libraries(capsys):
    log_to_stderr()  # a fixture takes its handler away
    logging.getLogger("orbax").setLevel(logging.INFO)
    for name, level, message in (
        ("transformer_jax.training", logging.INFO, "step 1/2"),
        ("transformer_jax.cli", logging.WARNING, "odd"),
        ("absl", logging.WARNING, "saving"),
        ("jax._src.compiler", logging.WARNING, "no GPU"),
        ("orbax", logging.INFO, "saving"),
    ):
        logging.getLogger(name).log(level, message)
    out, err = capsys.readouterr()
    shown = [line.split(" ", 1)[1] for line in err.splitlines()]
    assert out == "" and shown[0] == "step 1/2"
    assert "odd" in err and "no GPU" in err and "saving" not in err
