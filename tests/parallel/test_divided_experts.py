# SPDX-License-Identifier: Apache-2.0
"""Experts on several devices: parameters, biases and records equal those of one device."""

import pytest


@pytest.fixture(scope="module")
def divided(eight_devices):
    return eight_devices["divided_experts"]


@pytest.mark.parametrize("layout", ["pmap 4", "expert 2, sequence 2, tensor 2"])
def test_experts_on_several_devices_equal_those_on_one(divided, layout):
    found = divided[layout]
    assert found["params"] < 5e-6 and all(found["counters"])
    assert all(distance < 1e-5 for distance in found["metrics"].values())
    assert found["values"]["aux/balance"] > 0.5


def test_an_axis_that_does_not_divide_the_experts_is_refused(divided):
    assert "expert 2 does not divide" in divided["refusal"]
    assert "make the 3 a multiple of 2" in divided["refusal"]
