# SPDX-License-Identifier: Apache-2.0
"""A bucket that mirrors a folder while it is written."""

import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from transformer_jax.buckets import lease, mirror
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.buckets.lease import Lease, last_copy
from transformer_jax.buckets.mirror import Mirror, MirrorLayout
from transformer_jax.errors import UserError

RECORDS = "records"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def damage(folder):
    """First damaged file of a unit by its seal; None if the unit is intact."""
    try:
        digests = json.loads((folder / "seal").read_bytes())
        wrong = [n for n, one in digests.items() if sha256((folder / n).read_bytes()) != one]
        return wrong[0] if wrong else None
    except (OSError, ValueError) as error:
        return str(error)


LAYOUT = MirrorLayout(
    unit=re.compile(r"steps/[0-9]+(?=/)"),
    seal="seal",
    mark=re.compile("(^|/)mark$"),
    temporary=re.compile(r"\.partial$|\.tmp"),
    damage=damage,
)


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".partial").write_bytes(content)
    path.with_name(path.name + ".partial").replace(path)


def seal(folder, step):
    unit = folder / "steps" / str(step)
    members = sorted(p for p in unit.rglob("*") if p.is_file() and p.name != "seal")
    digests = {str(p.relative_to(unit)): sha256(p.read_bytes()) for p in members}
    write(unit, "seal", json.dumps(digests).encode())


def save(folder, step):
    """Writes a unit as checkpoints are written: under a temporary name first."""
    for name, size in (("a", 10), ("b/c", 100_000), ("b/d", 0)):
        write(folder, f"steps/{step}.tmp/{name}", os.urandom(size))
    (folder / f"steps/{step}.tmp").rename(folder / f"steps/{step}")
    seal(folder, step)


def content_of(at):
    return {n: at.read(n) for n in at.entries() if not n.startswith(lease.LEASE_FOLDER)}


def files_of(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


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


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_damaged_unit_is_not_uploaded(at, folder):
    """It might be the only one if the machine is lost."""
    save(folder, 1)
    save(folder, 2)
    (folder / "steps/2/b/c").write_bytes(b"flipped")
    with mirroring(at, folder):
        until(lambda: "steps/1/seal" in at.entries())
        write(folder, RECORDS, b"1")
        until(lambda: RECORDS in at.entries())
        (folder / "steps/1/a").write_bytes(b"flipped")  # after its upload
    assert not at.entries("steps/2")  # and the run has ended all the same
    assert at.read("steps/1/a") != b"flipped"
    with mirroring(at, folder):
        shutil.rmtree(folder / "steps/2")
        save(folder, 2)
        until(lambda: "steps/2/seal" in at.entries())
    assert content_of(at) == files_of(folder)


def test_files_are_uploaded_while_the_run_writes_and_at_its_end(at, folder):
    with mirroring(at, folder):
        write(folder, "config", b"first")
        until(lambda: content_of(at) == {"config": b"first"})
        save(folder, 1)
        write(folder, "steps/2.tmp/a", b"on its way")
        until(lambda: "steps/1/seal" in at.entries())
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
        found = {name: self.read(name) for name in self.entries()}
        steps = [int(name.split("/")[1]) for name in found if name.endswith("/seal")]
        for step in steps:
            for name, digest in json.loads(found[f"steps/{step}/seal"]).items():
                assert sha256(found[f"steps/{step}/{name}"]) == digest, (step, name)
        assert not steps or int(found[RECORDS]) >= max(steps)
        assert steps or not any(self.seen), "the last unit went before another was there"
        self.seen.append(len(steps))

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
                    write(folder, f"steps/{step}/metrics", os.urandom(5))
                    seal(folder, step)
                case 3:
                    for old in kept[:-1]:
                        (folder / "steps" / str(old) / draw.choice(["a", "b/c", "b/d"])).unlink()
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
            seals |= {name for name in at.entries() if name.endswith("/seal")}
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
    at.write("steps/3/a", b"without a seal: not there")
    (folder / "steps/2/b/c").write_bytes(os.urandom(100_000))  # damaged
    shutil.rmtree(folder / "steps/1")
    write(folder, RECORDS, b"newer")
    with mirroring(at, folder):
        assert files_of(folder) == whole | {RECORDS: b"newer"}
    assert content_of(at) == whole | {RECORDS: b"newer", "steps/3/a": b"without a seal: not there"}


def test_the_last_unit_stays_until_another_is_uploaded_and_files_of_others_stay(at, folder):
    with mirroring(at, folder):
        save(folder, 1)
        until(lambda: "steps/1/seal" in at.entries())
        at.write("predictions/test", b"of another process")
        shutil.rmtree(folder / "steps/1")
        write(folder, "config", b"")
        until(lambda: "config" in at.entries())
        time.sleep(0.2)
        assert len(at.entries("steps/1")) == 4
        save(folder, 2)
    others = {"predictions/test": b"of another process"}
    assert content_of(at) == files_of(folder) | others and len(files_of(folder)) == 5
