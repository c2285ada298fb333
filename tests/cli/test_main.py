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
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_jax.cli import terminal
from transformer_jax.cli.main import main
from transformer_jax.cli.terminal import log_to_stderr
from transformer_jax.errors import Stopped, UserError

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("words", [["--help"], ["predict", "--help"], ["benchmark", "train", "-h"]])
def test_help_goes_to_stdout(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m transformer_jax")


def test_version_names_jax_and_python(capsysbinary):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    printed = capsysbinary.readouterr().out.decode()
    assert printed.startswith(f"transformer_jax {project['version']} (jax 0.")
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
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        words, cwd=foreign.parent, env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0 and "executed" not in answer.stdout
    assert "--workdir" in answer.stdout


def test_a_mistake_is_one_line_on_stderr_and_status_2():
    result = program("trian")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


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
    def load(*_args, **_options):
        raise error

    api.load = load
    assert main(["evaluate", "--workdir=x"]) == status
    told = capsys.readouterr().err
    assert told.startswith(message) and told.count("\n") == bool(message)


@pytest.mark.parametrize(
    "error", [SystemError("<built-in>"), OSError("of a library"), KeyError("size")]
)
def test_other_errors_are_raised_unless_an_interrupt_caused_them(api, capsys, monkeypatch, error):
    def load(*_args, **_options):
        raise error

    api.load = load
    with pytest.raises(type(error)):
        main(["evaluate", "--workdir=x"])
    monkeypatch.setattr(terminal, "was_interrupted", lambda: True)
    assert main(["evaluate", "--workdir=x"]) == 130
    assert capsys.readouterr().err == ""


def test_predict_writes_one_line_for_each_line_in_order(capitals):
    data = b"one\n\nM\xfcnchen\r\ntwo \\_ three\\\\ \r.\nlast"
    result = subprocess.run(capitals, input=data, capture_output=True)
    expected = "ONE\n\nM\ufffdNCHEN\nTWO \\_ THREE\\\\ \\r.\nLAST\n"
    assert result.stdout == expected.encode()
    assert result.returncode == 0
    assert b"line 3 of the input is not UTF-8" in result.stderr


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


def test_predict_passes_the_options_given_and_writes_json_lines(api, shell):
    asked = {}

    def n_best(lines, **options):
        asked.update(options)
        return [[SimpleNamespace(text=line.upper(), score=-1.5)] for line in lines]

    api.load = lambda *_args, **_options: SimpleNamespace(n_best=n_best, task=None)
    words = ("predict", "--workdir=w", "--format=jsonl", "--alpha=0.8")
    answer = shell(*words, stdin="grün\na\\nb\n".encode())
    assert asked == {"first_line": 1, "alpha": 0.8}
    assert [json.loads(line) for line in answer.out.splitlines()] == [
        {"outputs": [{"text": "GRÜN", "score": -1.5}]},
        {"outputs": [{"text": "A\\NB", "score": -1.5}]},
    ]
    refused = shell("predict", "--workdir=x", "--num_outputs=2")
    assert refused.status == 2 and "--format=jsonl" in refused.err


def test_evaluate_prints_one_json_object(api, capsys):
    asked = []

    def load(workdir, checkpoint, average, modules, base):
        asked.append((workdir, checkpoint, average, modules, base))
        return SimpleNamespace(
            evaluate=lambda **options: asked.append(options) or {"bleu": 31.5, "loss": float("inf")}
        )

    api.load = load
    assert main(["evaluate", "--workdir=w", "--checkpoint=best", "--average=3"]) == 0
    assert json.loads(capsys.readouterr().out) == {"bleu": 31.5, "loss": None}
    files = ["--source=s", "--target=t", "--beam_size=2"]
    more = ["--modules=my.py,mine.positions", "--base=b"]
    assert main(["evaluate", "--workdir=w", *files, *more]) == 0
    assert asked == [
        ("w", "best", 3, (), None),
        {},
        ("w", "latest", None, ["my.py", "mine.positions"], "b"),
        {"source": "s", "target": "t", "beam_size": 2},
    ]


def test_max_length_and_patch_change_a_run(api, capsys):
    asked = []
    run = SimpleNamespace(evaluate=lambda **options: {"loss": 1.0})
    run.with_config = lambda changes: asked.append(changes) or run
    run.patched = lambda changes: asked.append(changes) or run
    api.load = lambda workdir, checkpoint, average, modules, base: run
    places = ["encoder.layer_0.self_attention.heads[1]", "decoder.layer_*"]
    flags = [f"--patch={places[0]}=0", f"--patch={places[1]}=0.5", "--max_length=96"]
    assert main(["evaluate", "--workdir=w", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {"loss": 1.0}
    fields = ("data.max_length", "data.max_source_length", "data.max_target_length")
    assert asked == [dict.fromkeys(fields, 96), dict(zip(places, (0.0, 0.5), strict=True))]


def test_messages_go_to_stderr_without_those_of_libraries(capsys):
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        log_to_stderr()
        logging.getLogger("transformer_jax.training").info("step 1/2")
        logging.getLogger("transformer_jax.cli").warning("odd")
        logging.getLogger("absl").warning("saving")
        logging.getLogger("jax._src.compiler").warning("no GPU")
        logging.getLogger("orbax").setLevel(logging.INFO)
        logging.getLogger("orbax").info("saving")
    finally:
        root.handlers = before
    out, err = capsys.readouterr()
    assert out == ""
    shown = [line.split(" ", 1) for line in err.splitlines()]
    assert [rest for _, rest in shown][0] == "step 1/2"
    assert "odd" in err
    assert "no GPU" in err
    assert "saving" not in err


def test_a_long_value_does_not_make_a_long_line(capsys):
    assert main(["evaluate", "--workdir=w", "9" * 99999]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: unexpected argument 999")
    assert message.endswith("--FLAG=VALUE\n")
    assert len(message) < 1100
