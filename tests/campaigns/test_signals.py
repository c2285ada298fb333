# SPDX-License-Identifier: Apache-2.0
"""The campaign of signals, short."""

import json
import subprocess
import sys
from pathlib import Path

SIGNALS = Path(__file__).parent / "faults" / "signals.py"


def test_a_command_that_gets_a_signal_ends_as_documented_and_goes_on(tmp_path):
    words = [f"--workdir={tmp_path / 'campaign'}", "--commands=train", "--cases=2"]
    done = subprocess.run([sys.executable, SIGNALS, *words], capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[0])
    assert (done.returncode, found["wrong"]) == (0, {}), done.stderr
    assert found["cases"] >= 2
