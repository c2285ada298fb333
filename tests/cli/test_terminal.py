# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, full or left by their reader; interrupts."""

import io
import logging
import os
import signal
import subprocess
import sys

import pytest

from transformer_jax.cli import terminal
from transformer_jax.cli.main import main
from transformer_jax.cli.terminal import log_to_stderr

HELP = [sys.executable, "-m", "transformer_jax", "--help"]
DAMAGED = b"M\xfcnchen\n"  # causes a warning


def run(redirection, words, stdin=DAMAGED):
    """Runs a command line as a shell does with this redirection."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    return subprocess.run(command, input=stdin, capture_output=True)


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        ("<&-", b"error: stdin is closed"),
        (">&-", b"error: stdout or stderr is closed"),
        ("2>&-", b""),
        ("0> /dev/null", b"error: cannot read the input: Bad file descriptor"),
    ],
)
def test_a_closed_stream_is_an_error(capitals, redirection, message):
    answer = run(redirection, capitals)
    assert answer.returncode == 2
    assert answer.stderr.startswith(message) and answer.stderr.count(b"\n") <= 1


@pytest.mark.parametrize("verb", ["predict", "chat", "embed"])
def test_a_closed_stdin_is_reported_before_a_run_is_loaded(verb, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    assert main([verb, f"--workdir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: stdin is closed")


def test_messages_that_cannot_be_written_are_dropped(capitals):
    answer = run("2>/dev/full", capitals)
    assert (answer.returncode, answer.stdout) == (0, "M\ufffdNCHEN\n".encode())


def test_a_full_stdout_is_an_error(capitals):
    for words in (capitals, HELP):
        answer = run("> /dev/full", words, stdin=b"a\n")
        assert answer.returncode == 2
        assert answer.stderr == b"error: cannot write to stdout: No space left on device\n"


PRINTS = """
import sys
from types import SimpleNamespace
from transformer_jax.cli import main
main.parse = lambda words: SimpleNamespace(verb="train", traceback=False)
main.VERBS = {"train": SimpleNamespace(run=lambda args: print("of a component"))}
sys.exit(main.main([]))
"""


def test_what_a_component_prints_is_flushed_before_the_exit(monkeypatch, without_xla_flags):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    answer = run("> /dev/full", [sys.executable, "-c", PRINTS])
    assert answer.returncode == 2
    assert answer.stderr == b"error: cannot write to stdout: No space left on device\n"


def test_help_that_nobody_reads_is_quiet():
    with subprocess.Popen(HELP, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # long before it has imported what it needs
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_pipe_that_does_not_block_is_read_completely(capitals):
    read, write = os.pipe()
    os.set_blocking(read, False)
    with subprocess.Popen(capitals, stdin=read, stdout=subprocess.PIPE) as process:
        os.close(read)
        os.write(write, b"one\n")
        assert process.stdout.readline() == b"ONE\n"
        os.write(write, b"two\n")
        os.close(write)
        assert process.stdout.read() == b"TWO\n"


# A program whose `load` runs the code of a test, and then would take long.
PROGRAM = """
import gc, os, runpy, signal, sys, time, types
def interrupt(*_):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)
def load(*_, **__):
    from transformer_jax.cli import terminal
    terminal.announce_interrupt("what is saved")
    {how}
    print("lost", file=sys.stderr, flush=True)
    time.sleep(200)
stand_in = types.ModuleType("transformer_jax.runs.load")
stand_in.load = load
sys.modules[stand_in.__name__] = stand_in
sys.argv = ["transformer_jax", "evaluate", "--workdir=w"]
runpy.run_module("transformer_jax", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("how", "first", "status", "message"),
    [
        # Python would ignore the first.
        ("gc.callbacks.append(interrupt); gc.collect()", "", 130, "what is saved\n"),
        ("try: interrupt()\n    except KeyboardInterrupt: interrupt()", "", 130, "what is saved\n"),
        ("interrupt(); sys.exit(7)", "signal.signal(signal.SIGINT, signal.SIG_IGN)\n", 7, ""),
    ],
    ids=["in a callback of the garbage collector", "twice", "ignored, as under nohup"],
)
def test_an_interrupt_ends_the_program_unless_it_is_ignored(
    without_xla_flags, how, first, status, message
):
    program = f"import signal\n{first}{PROGRAM.format(how=how)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, message)


def test_an_interrupt_during_the_imports_is_quiet():
    words = [sys.executable, "-X", "importtime", "-m", "transformer_jax", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if line.endswith(b" transformer_jax.cli\n"):
                process.send_signal(signal.SIGINT)
                break
        message = b"".join(line for line in process.stderr if not line.startswith(b"import time:"))
    assert (process.returncode, message) == (130, b"")


FOREIGN = "a\x1b]0;b\x07\r\u202ec"
SHOWN = r"a\x1b]0;b\x07\r\u202ec"


def test_messages_log_lines_and_results_on_a_terminal_have_no_control_characters(
    capsys, monkeypatch
):
    terminal.print_message(f"error: {FOREIGN}")
    log_to_stderr()
    logging.getLogger("transformer_jax").warning("%s", FOREIGN)
    terminal.print_traceback(ValueError(FOREIGN))
    message, warning, traceback = capsys.readouterr().err.splitlines()
    assert message == f"error: {SHOWN}"
    assert warning.endswith(SHOWN) and traceback == f"ValueError: {SHOWN}"
    for is_terminal, written in ((False, FOREIGN), (True, SHOWN)):
        buffer = type("Stream", (io.BytesIO,), {"isatty": lambda self, is_=is_terminal: is_})()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer))
        terminal.write(f"{FOREIGN}\n")
        assert buffer.getvalue() == f"{written}\n".encode()
