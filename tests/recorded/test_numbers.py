# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of five configs reproduce recorded losses, gradient norms and outputs: four configs
on one device, one on a mesh of four.

To record again, only if a change is meant to change numbers:

    python -m pytest tests/recorded --record
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOLERANCE = 2e-6
"""Relative; other processors may add in another order."""


@pytest.mark.parametrize("devices", ["one", "mesh"])
def test_numbers_equal_the_recorded_ones(devices, tmp_path, request):
    program = [sys.executable, HERE / "twenty_steps.py", f"--devices={devices}"]
    done = subprocess.run(
        [*program, f"--folder={tmp_path}"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found, kept = json.loads(done.stdout), HERE / "numbers.json"
    if request.config.getoption("--record"):
        recorded = json.loads(kept.read_text()) | {devices: found}
        kept.write_text(json.dumps(recorded, indent=1) + "\n")
    recorded = json.loads(kept.read_text())[devices]
    assert set(found) == set(recorded)
    for config, numbers in recorded.items():
        for name in ("loss", "grad_norm", "valid_loss", "scores"):
            expected = pytest.approx(numbers[name], rel=TOLERANCE)
            assert found[config][name] == expected, f"{name} of {config}"
        assert found[config]["outputs"] == numbers["outputs"], config
