# SPDX-License-Identifier: Apache-2.0
"""Two processes of a job that are about to do different things, as the campaign tries it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "disagree.py"


def test_two_processes_that_differ_both_say_in_what(tmp_path):
    words = [f"--workdir={tmp_path}", "--only=^(seed|optimizer.learning_rate|processes|no field)$"]
    ran = subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=300
    )
    found = json.loads(ran.stdout)
    assert found["statuses"] == {"2 2": 4} and not found["bad"], found
