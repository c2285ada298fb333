# SPDX-License-Identifier: Apache-2.0
"""A bucket that mirrors a folder while it is written."""

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import time

import pytest

from tests.buckets.conftest import LAYOUT, files_of
from transformer_jax.buckets import lease, mirror
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.buckets.lease import Lease, last_copy
from transformer_jax.buckets.mirror import Mirror
from transformer_jax.checkpoints import manifest
from transformer_jax.errors import UserError

RECORDS = "records"


def write(folder, name, content):
    partial = folder / f"{name}.partial"
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(content)
    partial.replace(folder / name)


def save(folder, step):
    """Writes a unit as checkpoints are written: under a temporary name first."""
    for name, size in (("a/a", 10), ("b/c", 100_000), ("b/d", 0)):
        write(folder, f"steps/{step}.tmp/{name}", os.urandom(size))
    (folder / f"steps/{step}.tmp").rename(folder / f"steps/{step}")
    manifest.write_manifest(folder / f"steps/{step}")


def content_of(at):
    return {n: at.read(n) for n in at.entries() if not n.startswith(lease.LEASE_FOLDER)}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "copy"


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(mirror, "SCAN_SECONDS", 0.05)
    monkeypatch.setattr(mirror, "GROWING_FILE_SECONDS", 0.1)


@contextlib.contextmanager
def mirroring(at, folder):
    folder.mkdir(exist_ok=True)
    staging = folder.with_name("staging")
    with (
        Lease(at, "one", last_copy(at), "one") as held,
        Mirror(at, folder, staging, LAYOUT, held) as mirrored,
    ):
        yield mirrored


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_there(at, name):
    until(lambda: name in at.entries())


def test_a_damaged_unit_is_not_uploaded(at, folder):
    """It might be the only one if the machine is lost."""
    save(folder, 1)
    save(folder, 2)
    (folder / "steps/2/b/c").write_bytes(b"flipped")
    with mirroring(at, folder):
        until_there(at, f"steps/1/{manifest.MANIFEST}")
        write(folder, RECORDS, b"1")
        until_there(at, RECORDS)
        (folder / "steps/1/a/a").write_bytes(b"flipped")  # after its upload
    assert not at.entries("steps/2")  # and the run has ended all the same
    assert at.read("steps/1/a/a") != b"flipped"
    with mirroring(at, folder):
        shutil.rmtree(folder / "steps/2")
        save(folder, 2)
        until_there(at, f"steps/2/{manifest.MANIFEST}")
    assert content_of(at) == files_of(folder)


def test_files_are_uploaded_while_the_run_writes_and_at_its_end(at, folder):
    with mirroring(at, folder):
        write(folder, "config", b"first")
        until(lambda: content_of(at) == {"config": b"first"})
        save(folder, 1)
        write(folder, "steps/2.tmp/a/a", b"on its way")
        until_there(at, f"steps/1/{manifest.MANIFEST}")
        write(folder, "config", b"last")
        write(folder, RECORDS, b"1")
    shutil.rmtree(folder / "steps/2.tmp")
    assert content_of(at) == files_of(folder) and len(content_of(at)) == 6


class Watched(Bucket):
    """Checks all files in the bucket after each change."""

    def __init__(self, address):
        super().__init__(address)
        self.seen = []

    def _look(self):
        files = {name: self.read(name) for name in self.entries()}
        seals = [name for name in files if name.endswith(manifest.MANIFEST)]
        for seal in seals:
            for name, entry in json.loads(files[seal])["files"].items():
                content = files[seal.replace(manifest.MANIFEST, name)]
                assert hashlib.sha256(content).hexdigest() == entry["sha256"], (seal, name)
        assert all(int(files[RECORDS]) >= int(seal.split("/")[1]) for seal in seals)
        assert seals or not any(self.seen), "the last unit went before another was there"
        self.seen.append(len(seals))

    def _retry(self, failure, name, request):
        answer = super()._retry(failure, name, request)
        if failure in ("cannot write", "cannot delete"):
            self._look()
        return answer


def test_a_run_can_be_resumed_from_the_bucket_at_any_moment(address, folder, monkeypatch):
    monkeypatch.setattr(mirror, "SCAN_SECONDS", 1000)  # this test uploads itself
    monkeypatch.setattr(mirror, "GROWING_FILE_SECONDS", 1000)
    monkeypatch.setattr(mirror, "run_in_parallel", lambda do, items: [do(item) for item in items])
    draw, at = random.Random(0), Watched(address)
    kept, scored = [], []
    with mirroring(at, folder) as mirrored:
        for step in range(1, 40):
            write(folder, RECORDS, str(step).encode())
            match draw.randrange(4):
                case 0 | 1:
                    save(folder, step)
                    kept.append(step)
                case 2 if {*kept} - {*scored}:
                    step = draw.choice([step for step in kept if step not in scored])
                    scored.append(step)
                    write(folder, f"steps/{step}/metrics/valid", os.urandom(5))
                    if at.seen[-1] > 1:  # another unit stays whole meanwhile
                        write(folder, f"steps/{step}/a/a", os.urandom(10))
                    manifest.write_manifest(folder / f"steps/{step}")
                case 3:
                    for old in kept[:-1]:
                        (folder / "steps" / str(old) / draw.choice(["a/a", "b/c", "b/d"])).unlink()
                        mirrored._upload_changes()  # while it is deleted, file by file
                        shutil.rmtree(folder / "steps" / str(old))
                    del kept[:-1]
                    scored = [step for step in scored if step in kept]
            if draw.random() < 0.7:
                mirrored._upload_changes()
    assert content_of(at) == files_of(folder)
    assert len(at.seen) > 100 and max(at.seen) > 3


def test_units_arrive_although_the_run_saves_faster_than_the_network(address, folder):
    class Slow(Bucket):
        def upload(self, source, name):
            time.sleep(0.3)
            super().upload(source, name)

    at, seals = Slow(address), set()
    with mirroring(at, folder):
        for step in itertools.count(1):
            write(folder, RECORDS, str(step).encode())
            save(folder, step)
            shutil.rmtree(folder / "steps" / str(step - 1), ignore_errors=True)
            time.sleep(0.05)
            seals |= {name for name in at.entries() if name.endswith(manifest.MANIFEST)}
            if len(seals) == 3:
                break
        assert step > 6
    assert content_of(at) == files_of(folder)
    assert not folder.with_name("staging").exists()


class Failing(Bucket):
    """A bucket that is unreachable while `away` is True."""

    away = False

    def _retry(self, failure, name, request):
        def fail():
            raise OSError("the network is away")

        return super()._retry(failure, name, fail if self.away else request)


def test_uploads_are_repeated_while_the_bucket_is_unreachable(address, folder, caplog):
    at = Failing(address)
    with mirroring(at, folder):
        at.away = True
        save(folder, 1)
        until(lambda: "training continues, and the upload is repeated" in caplog.text)
        assert "the network is away" in caplog.text
        at.away = False
        until(lambda: content_of(at) == files_of(folder))
    kept = f"the network is away; what this run has written is in {folder}"
    with pytest.raises(UserError, match=kept), mirroring(at, folder):
        at.away = True
        save(folder, 2)
    at.away = False
    with mirroring(at, folder):
        pass
    assert content_of(at) == files_of(folder) and len(files_of(folder)) == 8


def test_a_run_whose_lease_is_lost_stops_and_writes_no_more(at, folder, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    with pytest.raises(UserError, match="taken over by another; .* in /"), mirroring(at, folder):
        at.write(f"{lease.LEASE_FOLDER}/2", lease.LeaseRecord("other", "another", "").encoded())
        write(folder, "config", b"mine")
        until(lambda: sent)
        assert sent == [(os.getpid(), signal.SIGTERM)]
    assert content_of(at) == {}


def test_a_copy_is_completed_from_the_bucket(at, folder):
    with mirroring(at, folder):
        write(folder, RECORDS, b"2")
        save(folder, 1)
        save(folder, 2)
    whole = files_of(folder)
    at.write("steps/3/a/a", b"without a seal: not there")
    (folder / "steps/2/b/c").write_bytes(os.urandom(100_000))  # damaged
    shutil.rmtree(folder / "steps/1")
    write(folder, RECORDS, b"newer")
    with mirroring(at, folder):
        assert files_of(folder) == whole | {RECORDS: b"newer"}
    unsealed = {"steps/3/a/a": b"without a seal: not there"}
    assert content_of(at) == whole | unsealed | {RECORDS: b"newer"}


def test_the_last_unit_stays_until_another_is_uploaded_and_files_of_others_stay(at, folder):
    with mirroring(at, folder):
        save(folder, 1)
        until_there(at, f"steps/1/{manifest.MANIFEST}")
        at.write("predictions/test", b"of another process")
        shutil.rmtree(folder / "steps/1")
        write(folder, "config", b"")
        until_there(at, "config")
        time.sleep(0.2)
        assert len(at.entries("steps/1")) == 4
        save(folder, 2)
    others = {"predictions/test": b"of another process"}
    assert content_of(at) == files_of(folder) | others and len(files_of(folder)) == 5
