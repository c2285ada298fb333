# SPDX-License-Identifier: Apache-2.0
"""Processes that run a module end with their block, and with their parent."""

import subprocess

from transformer_jax.lab.child_process import child_process, describe_end

MODULE = """
import os, sys
from transformer_jax.lab.child_process import end_with_parent
end_with_parent()
print(os.environ["WORD"], flush=True)
print("the end", file=sys.stderr)
while os.environ["WORD"] == "endless": pass
"""


def test_a_process_ends_with_its_block_and_when_its_stdin_closes(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    errors = tmp_path / "stderr"
    with child_process("endless", b"", errors, None, {"WORD": "ends"}) as process:
        assert process.wait(60) == 0
    assert errors.read_text() == "ends\nthe end\n"
    arguments = ("endless", b"", errors, subprocess.PIPE, {"WORD": "endless"})
    with child_process(*arguments) as process:
        assert process.stdout.readline() == b"endless\n"
    assert process.returncode == -9
    with child_process(*arguments) as process:
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(60) == 1
    with child_process("nowhere", bytes(2**20), errors) as process:
        assert process.wait(60) == 1  # without reading its work
    assert "No module named nowhere" in describe_end(1, errors.read_text())
    errors.write_text("a\nthe end\n")
    assert describe_end(1, errors.read_text()) == "the process ended with status 1: the end"
