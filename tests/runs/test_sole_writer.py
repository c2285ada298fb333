import os
import subprocess
import sys

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runs.sole_writer import sole_writer
from transformer_jax.runs.workdir import MARK

HOLD = """
import sys
from pathlib import Path
from transformer_jax.runs.sole_writer import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_is_refused_and_told_who_holds_the_workdir(tmp_path):
    workdir = tmp_path / "runs" / "one"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, workdir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "held\n"
    with (
        pytest.raises(UserError, match=f"one: process {first.pid} on .* is training there"),
        sole_writer(workdir),
    ):
        pass
    with sole_writer(tmp_path / "runs" / "two"):
        pass  # another workdir is free
    first.kill()  # which leaves no time to clean up
    first.communicate()
    with sole_writer(workdir):
        assert (workdir / MARK).read_text().startswith(f"process {os.getpid()} on ")


def test_a_workdir_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to .*file/run: "),
        sole_writer(tmp_path / "file" / "run"),
    ):
        pass
