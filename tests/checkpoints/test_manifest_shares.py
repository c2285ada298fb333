"""Processes share a checkpoint's files: each file is read once, and what one finds all are told."""

import threading

import pytest

from transformer_jax.checkpoints import manifest
from transformer_jax.parallel import hosts

MIB = 2**20


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "7"
    (folder / "params" / "d").mkdir(parents=True)
    for number in range(7):
        (folder / "params" / "d" / str(number)).write_bytes(bytes([number]) * 100 * number)
    return folder


@pytest.fixture
def notes(monkeypatch):
    """Stands in for the service that all processes have met at: texts by name."""
    left, changed = {}, threading.Condition()

    def tell(name, value):
        with changed:
            left[name] = value
            changed.notify_all()

    def heard(name, seconds):
        with changed:
            changed.wait_for(lambda: name in left, seconds)
            return left.get(name)

    def forget(name):
        for key in [key for key in left if key.startswith(f"{name}/")]:
            del left[key]

    for function in (tell, heard, forget):
        monkeypatch.setattr(hosts, function.__name__, function)
    return left


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_disjoint_whole_and_balanced(count):
    sizes = {f"d/{i}": size * MIB for i, size in enumerate([9, 1, 7, 7, 2, 0, 0, 5, 3, 8, 6, 4])}
    parts = [manifest.share(sizes, process, count) for process in range(count)]
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    nbytes = [sum(sizes[name] for name in part) for part in parts]
    assert max(nbytes) - min(nbytes) <= 2 * MIB


def test_one_process_of_many_finds_a_damaged_file(folder):
    manifest.write(folder)
    (folder / "params" / "d" / "6").write_bytes(bytes(600))
    found = [manifest.damage(folder, ("params",), None, (process, 3)) for process in range(3)]
    assert sorted(text for text in found if text) == [manifest.damage(folder)]


def test_processes_write_the_manifest_of_one_and_read_each_file_once(folder, notes, monkeypatch):
    entry_of, read = manifest._entry_of, []
    monkeypatch.setattr(
        manifest, "_entry_of", lambda path: read.append(path.name) or entry_of(path)
    )
    others = [
        threading.Thread(target=manifest.help_write_in_job, args=(folder, "saves/0", process, 3))
        for process in (1, 2)
    ]
    for other in others:
        other.start()
    manifest.write_in_job(folder, "saves/0", 3)
    for other in others:
        other.join()
    assert sorted(read) == list("0123456") and notes == {}
    entries = manifest.read_entries(folder)
    manifest.write(folder)
    assert list(entries.items()) == list(manifest.read_entries(folder).items())


@pytest.mark.parametrize("told", [None, {}, {"params/d/6": {"size": 5, "sha256": ""}}])
def test_what_the_others_do_not_hash_or_saw_otherwise_the_first_hashes(
    folder, notes, monkeypatch, told
):
    monkeypatch.setattr(manifest, "_SECONDS_TO_HASH", 0.1)
    if told is not None:
        notes["saves/0/1"] = told
    manifest.write_in_job(folder, "saves/0", 2)
    assert manifest.damage(folder) is None
    assert len(manifest.read_entries(folder)) == 7


def test_a_process_that_cannot_read_its_share_says_so_at_once(folder, notes):
    notes["saves/0/files"] = {"params/d/gone": 5}
    manifest.help_write_in_job(folder, "saves/0", 0, 1)
    assert notes["saves/0/0"] == {}


def test_nobody_helps_with_a_save_that_failed(folder, notes, monkeypatch):
    monkeypatch.setattr(manifest, "_SECONDS_OF_A_SAVE", 0.01)
    manifest.help_write_in_job(folder, "saves/0", 1, 2)
    assert notes == {}


def test_one_process_alone_finds_what_it_finds(folder):
    manifest.write(folder)
    assert manifest.damage_in_job(folder) is None
    (folder / "params" / "d" / "3").unlink()
    assert manifest.damage_in_job(folder, ("params",)) == "params/d/3 is missing"
