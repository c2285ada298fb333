# SPDX-License-Identifier: Apache-2.0
"""Twenty steps on a mesh of four devices reproduce the recorded numbers."""

import json
import subprocess
import sys
from pathlib import Path

from tests.recorded import twenty_steps
from tests.recorded.test_numbers import assert_recorded


def test_numbers_on_a_mesh_equal_the_recorded_ones(tmp_path):
    program = [sys.executable, Path(twenty_steps.__file__), "--devices=mesh"]
    done = subprocess.run([*program, f"--folder={tmp_path}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, numbers in json.loads(done.stdout).items():
        assert_recorded(name, numbers)
