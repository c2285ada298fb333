# SPDX-License-Identifier: Apache-2.0
"""Rows of a sweep's folder are claimed by one process (killed ones: tests/campaigns)."""

import pytest

from transformer_jax.errors import BusyError
from transformer_jax.lab.sweeps.shared_folder import SweepFolder


def test_a_row_is_claimed_by_one_process(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    with folder.claim("one"):
        with pytest.raises(BusyError), SweepFolder(tmp_path / "sweep").claim("one"):
            pass
        with SweepFolder(tmp_path / "sweep").claim("two") as other:
            assert other.is_dir()
    with SweepFolder(tmp_path / "sweep").claim("one"):
        pass


def test_rows_in_a_bucket_are_claimed_by_lease(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("transformer_jax.buckets.lease.STALE_SECONDS", 0.3)
    monkeypatch.setattr("transformer_jax.buckets.lease.RENEW_SECONDS", 0.05)
    address = f"memory://sweeps/{tmp_path.name}"
    folder = SweepFolder(address)
    with folder.claim("one row") as place:
        (place / "result.json").write_text("{}")
        with pytest.raises(BusyError), SweepFolder(address).claim("one row"):
            pass
    assert folder.result("one row") == b"{}" and folder.result("two") is None
    folder.write(lambda place: (place / "table.txt").write_text("rows"))
    assert folder.bucket.read("table.txt") == b"rows"
