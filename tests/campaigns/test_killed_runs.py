# SPDX-License-Identifier: Apache-2.0
"""The campaign of killed runs, short."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import QUICKSTART

KILL_RESUME = Path(__file__).parent / "faults" / "kill_resume.py"


def test_a_run_killed_during_a_save_ends_as_the_uninterrupted_one(tiny, tmp_path):
    changes = tiny | {"checkpoint.every_steps": 3, "eval.every_steps": 1000}
    fields = [f"--config.{name}={value}" for name, value in changes.items()]
    words = [f"--config={QUICKSTART}", f"--workdir={tmp_path}", *fields]
    words += ["--quick", "--kills=1", "--during_save=1"]
    done = subprocess.run([sys.executable, KILL_RESUME, *words], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (done.returncode, found["different"]) == (0, []), done.stderr
    assert found["during_save"] == 1
