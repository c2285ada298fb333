# SPDX-License-Identifier: Apache-2.0
"""The judge of the campaign that kills imports and exports."""

import sys
from pathlib import Path

import pytest

from transformer_jax.runtime.files import PARTIAL

FAULTS = Path(__file__).parent


@pytest.fixture
def kill_transfer(monkeypatch):
    monkeypatch.syspath_prepend(FAULTS)
    import kill_transfer

    yield kill_transfer
    sys.modules.pop("kill_transfer", None)


def test_folders_are_compared_without_clocks(kill_transfer, tmp_path):
    for name, config in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(config)
        (tmp_path / name / "checkpoints" / "time").write_text(name)
    first, second, other = (kill_transfer.digests(tmp_path / name) for name in "abc")
    assert first == second != other


def test_a_folder_in_part_is_reported_and_leftovers_are_not(kill_transfer, tmp_path):
    calls = iter([0, 0, None, None, 0])

    def call(words, seconds=None, watched=None):
        (target,) = words
        status = next(calls)
        target.mkdir(exist_ok=True)
        if status == 0 or target.name == "killed_0":
            (target / "config.json").write_text("whole" if status == 0 else "half")
        (target / PARTIAL).mkdir(exist_ok=True)
        return status

    kill_transfer.call = call
    found = kill_transfer.campaign(
        tmp_path / "runs", lambda target: [target], [], 2, kill_transfer.random.Random(0)
    )
    assert found["kills"] == found["partial"] == 2
    assert found["wrong"][0] == f"{tmp_path}/runs/killed_0 is there in part"
    assert not any("killed_1" in line for line in found["wrong"])


def test_only_folders_written_since_count(kill_transfer, tmp_path):
    (tmp_path / f".run{PARTIAL}").mkdir()
    written = (tmp_path / f".run{PARTIAL}").stat().st_mtime_ns
    assert kill_transfer.has_partial(tmp_path)
    assert not kill_transfer.has_partial(tmp_path, written)
