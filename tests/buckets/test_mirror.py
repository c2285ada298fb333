import hashlib
import json
import os
import random
import re
import shutil
import signal
import time

import pytest

from transformer_jax.buckets import lease, mirror
from transformer_jax.buckets.bucket import Bucket, MirrorLayout
from transformer_jax.buckets.lease import Lease, last_copy
from transformer_jax.buckets.mirror import Mirror
from transformer_jax.errors import UserError

RECORDS = "records"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def damage(folder):
    """What is wrong with a unit on disk by its seal; None if nothing is."""
    try:
        digests = json.loads((folder / "seal").read_bytes())
        wrong = [n for n, one in digests.items() if sha256((folder / n).read_bytes()) != one]
        return wrong[0] if wrong else None
    except (OSError, ValueError) as error:
        return str(error)


LAYOUT = MirrorLayout(
    unit=re.compile(r"steps/[0-9]+(?=/)"),
    seal="seal",
    listed=lambda folder: json.loads((folder / "seal").read_bytes()),
    passing=re.compile(r"\.partial$|\.tmp"),
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
    """A unit as a checkpoint is written: elsewhere first."""
    for name, size in (("a", 10), ("b/c", 100_000), ("b/d", 0)):
        write(folder, f"steps/{step}.tmp/{name}", os.urandom(size))
    (folder / f"steps/{step}.tmp").rename(folder / f"steps/{step}")
    seal(folder, step)


def content_of(at):
    return {n: at.read(n) for n in at.entries() if not n.startswith(lease.FOLDER)}


def files_of(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "copy"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(mirror, "GROWN_SECONDS", 0.1)


def mirrored(at, folder, copy="one"):
    folder.mkdir(exist_ok=True)
    pins = folder.with_name("pins")
    return Mirror(at, folder, pins, LAYOUT, Lease(at, copy, last_copy(at), copy))


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_damaged_before_it_came_to_the_bucket_does_not_come_there(at, folder):
    """Else it might be all that is there when the machine is lost."""
    save(folder, 1)
    save(folder, 2)
    (folder / "steps/2/b/c").write_bytes(b"flipped")
    brought = mirrored(at, folder)
    with brought._lease, brought:
        until(lambda: "steps/1/seal" in at.entries())
        write(folder, RECORDS, b"1")
        until(lambda: RECORDS in at.entries())
        assert not at.entries("steps/2")
        shutil.rmtree(folder / "steps/2")
        save(folder, 2)
        until(lambda: "steps/2/seal" in at.entries())
        (folder / "steps/1/a").write_bytes(b"flipped")  # after it had come
    assert at.read("steps/2/b/c") == (folder / "steps/2/b/c").read_bytes()


def test_a_damaged_unit_that_stays_does_not_keep_a_run_from_its_end(at, folder):
    save(folder, 1)
    (folder / "steps/1/a").write_bytes(b"flipped")
    write(folder, "config", b"one")
    brought = mirrored(at, folder)
    with brought._lease, brought:
        pass
    assert content_of(at) == {"config": b"one"}


def test_what_is_written_comes_to_the_bucket_at_once_and_at_the_end(at, folder):
    brought = mirrored(at, folder)
    with brought._lease, brought:
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
    """Looks at all that lies there after each change."""

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

    def write(self, name, content):
        super().write(name, content)
        self._look()

    def upload(self, source, name):
        super().upload(source, name)
        self._look()

    def delete(self, name):
        super().delete(name)
        self._look()


def test_at_any_moment_the_bucket_is_fit_to_go_on_from(address, folder, monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 1000)  # it is pushed here
    monkeypatch.setattr(mirror, "GROWN_SECONDS", 1000)
    monkeypatch.setattr(mirror, "at_once", lambda do, items: [do(item) for item in items])
    draw, at = random.Random(0), Watched(address)
    brought, kept, scored = mirrored(at, folder), [], []
    with brought._lease, brought:
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
                        brought._push()  # while it is deleted, file by file
                        shutil.rmtree(folder / "steps" / str(old))
                    del kept[:-1]
                    scored = [step for step in scored if step in kept]
            if draw.random() < 0.7:
                brought._push()
    assert content_of(at) == files_of(folder)
    assert len(at.seen) > 100 and max(at.seen) > 3


def test_a_run_that_saves_faster_than_the_network_carries_is_brought(address, folder):
    class Slow(Bucket):
        def upload(self, source, name):
            time.sleep(0.3)
            super().upload(source, name)

    at, seals = Slow(address), set()
    brought = mirrored(at, folder)
    with brought._lease, brought:
        for step in range(1, 30):
            write(folder, RECORDS, str(step).encode())
            save(folder, step)
            shutil.rmtree(folder / "steps" / str(step - 1), ignore_errors=True)
            time.sleep(0.05)
            seals |= {name for name in at.entries() if name.endswith("/seal")}
        assert 2 < len(seals) < 20
    assert content_of(at) == files_of(folder)
    assert not folder.with_name("pins").exists()


def test_what_a_bucket_loses_is_sent_again(address, folder):
    class Losing(Bucket):
        lost = set()

        def _lose(self, name):
            if LAYOUT.is_seal(name):
                assert len(self.entries("steps/1")) == 3, "sealed before it is whole"
            if name in self.lost or name.startswith(lease.FOLDER):
                return False
            self.lost.add(name)
            return True

        def write(self, name, content):
            if not self._lose(name):
                super().write(name, content)

        def upload(self, source, name):
            if not self._lose(name):
                super().upload(source, name)

    at = Losing(address)
    brought = mirrored(at, folder)
    with brought._lease, brought:
        write(folder, RECORDS, b"1")
        save(folder, 1)
    assert content_of(at) == files_of(folder) and len(at.lost) == 5


class Failing(Bucket):
    """Is away at times."""

    away = False

    def _patiently(self, what, name, request):
        def fails():
            raise OSError("the network is away")

        return super()._patiently(what, name, fails if self.away else request)


def test_a_bucket_that_is_away_for_a_while_is_waited_for(address, folder, caplog):
    at = Failing(address)
    brought = mirrored(at, folder)
    with brought._lease, brought:
        at.away = True
        save(folder, 1)
        until(lambda: "training goes on, and it is tried again" in caplog.text)
        assert "the network is away" in caplog.text
        at.away = False
        until(lambda: content_of(at) == files_of(folder))


def test_what_could_not_be_brought_is_told_and_kept(address, folder):
    at = Failing(address)
    brought = mirrored(at, folder)
    kept = f"the network is away; what this run has written is in {folder}"
    with pytest.raises(UserError, match=kept), brought._lease, brought:
        at.away = True
        save(folder, 1)
    at.away = False
    again = mirrored(at, folder)
    with again._lease, again:
        pass
    assert content_of(at) == files_of(folder) and len(files_of(folder)) == 4


def test_a_run_that_is_taken_over_stops_and_writes_no_more(at, folder, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *signalled: sent.append(signalled))
    brought = mirrored(at, folder)
    with pytest.raises(UserError, match="taken over by another; .* in /"), brought._lease, brought:
        at.write(f"{lease.FOLDER}/2", lease.Record("other", "another", "").encoded())
        write(folder, "config", b"mine")
        until(lambda: sent)
        assert sent == [(os.getpid(), signal.SIGTERM)]
    assert content_of(at) == {}


def test_a_copy_is_made_whole_from_the_bucket(at, folder):
    first = mirrored(at, folder)
    with first._lease, first:
        write(folder, RECORDS, b"2")
        save(folder, 1)
        save(folder, 2)
    whole = files_of(folder)
    at.write("steps/3/a", b"without a seal: not there")
    (folder / "steps/2/b/c").write_bytes(os.urandom(100_000))  # damaged
    shutil.rmtree(folder / "steps/1")
    write(folder, RECORDS, b"newer")
    again = mirrored(at, folder)
    with again._lease, again:
        assert files_of(folder) == whole | {RECORDS: b"newer"}
    assert content_of(at) == whole | {RECORDS: b"newer", "steps/3/a": b"without a seal: not there"}


def test_the_last_unit_stays_until_another_is_there(at, folder):
    brought = mirrored(at, folder)
    with brought._lease, brought:
        save(folder, 1)
        until(lambda: "steps/1/seal" in at.entries())
        shutil.rmtree(folder / "steps/1")
        write(folder, "config", b"")
        until(lambda: "config" in at.entries())
        time.sleep(0.2)
        assert len(at.entries("steps/1")) == 4
        save(folder, 2)
    assert content_of(at) == files_of(folder)


def test_what_others_put_beside_a_run_is_kept(at, folder):
    brought = mirrored(at, folder)
    with brought._lease, brought:
        save(folder, 1)
        until(lambda: "steps/1/seal" in at.entries())
        at.write("predictions/test", b"of another process")
        save(folder, 2)
        shutil.rmtree(folder / "steps/1")
    others = {"predictions/test": b"of another process"}
    assert content_of(at) == files_of(folder) | others and len(files_of(folder)) == 4
