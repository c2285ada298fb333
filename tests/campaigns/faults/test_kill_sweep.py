# SPDX-License-Identifier: Apache-2.0
"""The judge of the campaign that kills sweeps."""

import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent


@pytest.fixture
def kill_sweep(monkeypatch):
    monkeypatch.syspath_prepend(FAULTS)
    known = set(sys.modules)
    import kill_sweep

    yield kill_sweep
    for name in {"kill_sweep", "tiny_runs", "campaign"} - known:
        sys.modules.pop(name, None)


def test_tables_are_compared_without_clocks(kill_sweep, tmp_path):
    for name, loss, seconds in (("a", 1.5, 3), ("b", 1.5, 4), ("c", 1.6, 3)):
        (tmp_path / name).mkdir()
        text = f"row,loss_mean,tokens_per_s,seconds\nwide,{loss},{9 * seconds},{seconds}\n"
        (tmp_path / name / "table.csv").write_text(text)
    first, second, other = (kill_sweep.table(tmp_path / name) for name in "abc")
    assert first == second != other


def test_a_step_that_was_recorded_twice_is_reported(kill_sweep, tmp_path):
    for name, steps in (("good", (1, 2)), ("bad", (1, 2, 2))):
        (tmp_path / name).mkdir()
        lines = [f'{{"step": {step}, "split": "train"}}\n' for step in steps]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    told = f"{tmp_path}/bad/metrics.jsonl has a step twice"
    assert kill_sweep.repeated_steps(tmp_path) == [told]
