# SPDX-License-Identifier: Apache-2.0
"""Devices and topologies by name."""

from functools import partial

import pytest

from tests.refusals import assert_refused
from transformer_jax.lab.plan import target


@pytest.mark.parametrize(
    ("text", "slices", "shape", "shown"),
    [
        ("h100:8", 1, (1, 8), "h100:1x8"),
        ("H100:32x8", 1, (32, 8), "h100:32x8"),
        ("v5e:4x4", 1, (4, 4), "v5e:4x4"),
        ("v5p:4x4x8", 2, (4, 4, 8), "v5p:4x4x8 x 2 slices"),
        ("v4:2x2x1", 1, (2, 2, 1), "v4:2x2x1"),
    ],
)
def test_devices_have_names_and_sizes(text, slices, shape, shown):
    found = target.parse_target(text, slices)
    assert found.shape == shape and found.slices == slices and str(found) == shown


def test_unknown_devices_and_topologies_are_refused(monkeypatch):
    texts = {
        "no device is called 'rtx4090'; known: b200, ": "rtx4090:1",
        "no device is called 'h10'; did you mean h100": "h10:8",
        "did you mean v5": "v5:4x4",
        "give the number of devices, as h100:8": "h100",
        "give the number of devices, as v5e:4x4": "v5e:",
        "give the number": "v5e:0x4",
        "no such slice of v5e: its slices are 1x1, 2x2": "v5e:3x3",
        "no such slice of v5e": "v5e:4x4x4",
        "no such slice of v5p: its slices are 2x2x1": "v5p:4x4",
        "A <= B <= C": "v5p:8x4x4",
        "at most 8960 chips": "v5p:64x64x64",
        "at most 8 GPUs a host": "h100:2x3x4",
        "8 GPUs a host": "h100:9",
    }
    calls = {words: partial(target.parse_target, text) for words, text in texts.items()}
    calls["at most 16384 chips"] = partial(target.parse_target, "v5p:16x16x32", 4)
    hosts = "--slices is for TPUs; for GPUs write hosts: h100:2x8"
    calls[hosts] = partial(target.parse_target, "h100:8", 2)
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)
    for device, extra in (("v5e:2x2", "plan-tpu"), ("t4:1", "plan-gpu")):  # not installed
        parsed = target.parse_target(device)
        calls[f"`make setup EXTRAS={extra}`"] = partial(target.require_compiler, parsed)
    assert_refused(calls)
