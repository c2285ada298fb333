"""Standard streams that are closed, full or left, as a shell hands them over."""

import os
import subprocess
import sys

import pytest

HELP = [sys.executable, "-m", "transformer_jax", "--help"]
DAMAGED = b"M\xfcnchen\n"  # which a message tells of


def run(redirection, words, stdin=DAMAGED):
    """Runs words as a shell does with this redirection."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    return subprocess.run(command, input=stdin, capture_output=True)


def test_a_closed_stdin_is_told(capitals):
    answer = run("<&-", capitals)
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert answer.stderr.startswith(b"error: stdin is closed") and answer.stderr.count(b"\n") == 1


def test_a_closed_stdout_is_told_before_anything_is_done(capitals):
    answer = run(">&-", capitals)
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"error: stdout is closed") and answer.stderr.count(b"\n") == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_messages_that_nobody_reads_are_dropped(capitals, redirection):
    answer = run(redirection, capitals)
    assert (answer.returncode, answer.stdout) == (0, "M\ufffdNCHEN\n".encode())
    mistake = [sys.executable, "-m", "transformer_jax", "trian"]
    assert run(redirection, mistake).returncode == 2


@pytest.mark.parametrize("verb", ["predict", "help"])
def test_a_full_stdout_is_told(capitals, verb):
    answer = run("> /dev/full", capitals if verb == "predict" else HELP, stdin=b"a\n")
    assert answer.returncode == 2
    assert answer.stderr == b"error: cannot write to stdout: No space left on device\n"


def test_help_that_nobody_reads_is_quiet():
    with subprocess.Popen(HELP, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # long before it has imported what it needs
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_an_input_that_cannot_be_read_is_told(capitals):
    answer = run("0> /dev/null", capitals)
    assert answer.returncode == 2
    assert answer.stderr == b"error: cannot read the input: Bad file descriptor\n"


def test_no_file_is_opened_where_a_standard_stream_was():
    code = "from transformer_jax.cli.streams import open_standard as fill; fill(); import os;"
    code += "print(os.open('/dev/null', os.O_RDONLY), file=open('/dev/stderr', 'w'))"
    assert run("<&- >&-", [sys.executable, "-c", code]).stderr == b"3\n"


def test_who_waits_for_a_pipe_that_does_not_block_gets_all_of_it(capitals):
    read, write = os.pipe()
    os.set_blocking(read, False)
    with subprocess.Popen(capitals, stdin=read, stdout=subprocess.PIPE) as process:
        os.close(read)
        os.write(write, b"one\n")
        assert process.stdout.readline() == b"ONE\n"
        os.write(write, b"two\n")
        os.close(write)
        assert process.stdout.read() == b"TWO\n"
