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
    with child_process("endless", b"", str(tmp_path), None, {"WORD": "ends"}) as process:
        assert process.wait(60) == 0
    assert (tmp_path / "stderr").read_text() == "ends\nthe end\n"
    assert describe_end(process, str(tmp_path)) == "the process ended with status 0: the end"
    arguments = ("endless", b"", str(tmp_path), subprocess.PIPE, {"WORD": "endless"})
    with child_process(*arguments) as process:
        assert process.stdout.readline() == b"endless\n"
    assert process.returncode == -9
    with child_process(*arguments) as process:
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(60) == 1
    with child_process("nowhere", bytes(2**20), str(tmp_path)) as process:
        assert process.wait(60) == 1  # without reading its work
    assert "No module named nowhere" in describe_end(process, str(tmp_path))
