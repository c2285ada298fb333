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

from tests.recorded.twenty_steps import ON_A_MESH, experiments, numbers_on

HERE = Path(__file__).parent
TOLERANCE = 2e-6
"""Relative; other processors may add in another order."""
RECORDED = json.loads((HERE / "numbers.json").read_text())
CONFIGS = [("mesh" if name in ON_A_MESH else "one", name) for name in experiments(HERE)]


def numbers_of(devices, name, folder):
    """Numbers of a config; a mesh needs a process with four devices."""
    if devices == "one":
        return numbers_on(devices, folder, [name])
    program = [sys.executable, HERE / "twenty_steps.py", f"--devices={devices}"]
    done = subprocess.run([*program, f"--folder={folder}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("devices", "name"), CONFIGS)
def test_numbers_equal_the_recorded_ones(devices, name, tmp_path, request):
    found = numbers_of(devices, name, tmp_path)
    if request.config.getoption("--record"):
        RECORDED[devices] |= found
        (HERE / "numbers.json").write_text(json.dumps(RECORDED, indent=1) + "\n")
    expected, numbers = RECORDED[devices][name], found[name]
    for part in ("loss", "grad_norm", "valid_loss", "scores"):
        assert numbers[part] == pytest.approx(expected[part], rel=TOLERANCE), part
    assert numbers["outputs"] == expected["outputs"]


def test_every_recorded_config_is_trained():
    recorded = {(devices, name) for devices, configs in RECORDED.items() for name in configs}
    assert recorded == set(CONFIGS)
