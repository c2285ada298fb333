# SPDX-License-Identifier: Apache-2.0
"""Workers on several machines share a sweep in a bucket."""

from experiments.faults.emulators import emulator
from tests.sweeps.test_shared_folder import ROWS, run_workers
from transformer_jax.buckets.bucket import Bucket


def test_rows_in_a_bucket_are_taken_over_and_each_is_trained_once(tmp_path, monkeypatch):
    """Each worker is a machine: it has its own copies."""
    log = tmp_path / "log"
    with emulator("s3") as cloud:
        environs = [cloud.environ | {"XDG_CACHE_HOME": str(tmp_path / str(n))} for n in range(3)]
        address = f"{cloud.address}/sweep"
        run_workers(address, log, environs, seconds=0.3, kills=1)
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        table = Bucket(address).read("table.csv").decode()
    assert sorted(log.read_text().splitlines()) == sorted(ROWS)
    run_workers(tmp_path / "alone", tmp_path / "log_2", [{}], seconds=0)
    assert table == (tmp_path / "alone" / "table.csv").read_text()
