# SPDX-License-Identifier: Apache-2.0
"""The verb `plan`: its output streams and exit statuses."""

import json

import pytest

from transformer_jax.cli.main import main
from transformer_jax.lab.plan import plan as planning

QUICKSTART = "--config=configs/quickstart.py"
REPORT = {
    "device": "v5e:1x1",
    "dtype": "bfloat16",
    "accumulation_steps": 1,
    "remat": "none",
    "memory": {"peak_gib": 20.5, "usable_gib": 15.75, "left_gib": -4.75, "fits": False},
    "warnings": [],
    "note": planning.NOTE,
}
"""Report on a step that the compiler refused."""
FITTING = REPORT | {
    "memory": REPORT["memory"] | {"left_gib": 4.75, "fits": True},
    "step_ms": 2.0,
    "tokens_per_s": 1000,
    "mfu": 0.25,
}


@pytest.fixture
def reports(monkeypatch):
    """`reports(*found)`: plans to return in place of compilations; returns the list of requests."""
    asked = []

    def use(*found):
        left = iter(found)

        def plan(config, device, slices=1, decode=False, modules=()):
            asked.append((config.parallel.fsdp, device, slices, decode))
            return next(left)

        monkeypatch.setattr(planning, "plan", plan)
        return asked

    return use


def test_json_goes_to_stdout_and_a_table_to_stderr(reports, capfd):
    asked = reports(FITTING)
    words = ["plan", QUICKSTART, "--device=v5p:4x4x8", "--slices=2", "--config.parallel.fsdp=4"]
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == FITTING
    assert "yes, 4.75 GiB left" in err and planning.NOTE in err
    assert asked == [(4, "v5p:4x4x8", 2, False)]


def test_a_step_that_does_not_fit_is_an_error_after_its_report(reports, capfd):
    reports(REPORT | {"advice": ["train.remat=full (not estimated)"]})
    assert main(["plan", QUICKSTART, "--device=v5e:1x1", "--decode"]) == 2
    out, err = capfd.readouterr()
    assert json.loads(out)["memory"]["fits"] is False
    assert err.splitlines()[-1] == (
        "error: the step does not fit v5e:1x1: it needs 20.5 GiB of the 15.8 GiB that a device "
        "has, 4.8 GiB too much; to make it fit: train.remat=full (not estimated)"
    )


def test_meshes_are_tried_until_they_fit_and_ranked(reports, monkeypatch, capfd):
    sizes = {"devices": 4, "local": 4, "state": 10**9, "rows": 64, "d_model": 256, "heads": 1}
    monkeypatch.setattr(planning, "_run_child", lambda request: sizes)
    monkeypatch.setattr(planning, "require_compiler", lambda target: None)
    slower = FITTING | {"step_ms": 9.0, "tokens_per_s": 10}
    reports(REPORT, slower, FITTING)  # data 4: only with remat; fsdp 2
    assert main(["plan", QUICKSTART, "--device=v5e:2x2", "--search"]) == 0
    out, err = capfd.readouterr()
    found = [one["settings"] for one in json.loads(out)["meshes"]]
    assert [(one["data"], one["fsdp"], one["remat"]) for one in found] == [
        (2, 2, "none"),
        (4, 1, "full"),
        (4, 1, "none"),
    ]
    assert err.rstrip().endswith("does not fit")
