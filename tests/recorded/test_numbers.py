# SPDX-License-Identifier: Apache-2.0
"""Twenty steps of five configs reproduce recorded losses, gradient norms and outputs on one device.
One was recorded on a mesh of four; `tests/campaigns/test_several_devices.py` trains it there.

To record again, only if a change is meant to change numbers:

    python -m pytest tests/recorded --record
"""

import json
from pathlib import Path

import pytest

from tests.recorded.twenty_steps import ON_A_MESH, experiments, numbers_on

NUMBERS = Path(__file__).parent / "numbers.json"
TOLERANCE = 2e-6
"""Relative; other processors and meshes may add in another order."""
RECORDED = json.loads(NUMBERS.read_text())
CONFIGS = [*experiments(NUMBERS.parent)]


def recorded_on(name):
    return "mesh" if name in ON_A_MESH else "one"


def assert_recorded(name, numbers):
    expected = RECORDED[recorded_on(name)][name]
    for part in ("train_loss", "grad_norm", "valid_train_loss", "valid_loss", "scores"):
        assert numbers[part] == pytest.approx(expected[part], rel=TOLERANCE), part
    assert numbers["outputs"] == expected["outputs"]


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_equal_the_recorded_ones(name, tmp_path, request):
    numbers = numbers_on("one", tmp_path, [name])
    if request.config.getoption("--record"):
        RECORDED[recorded_on(name)] |= numbers
        NUMBERS.write_text(json.dumps(RECORDED, indent=1) + "\n")
    assert_recorded(name, numbers[name])


def test_every_recorded_config_is_trained():
    recorded = [name for configs in RECORDED.values() for name in configs]
    assert sorted(recorded) == sorted(CONFIGS)
