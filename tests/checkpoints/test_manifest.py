# SPDX-License-Identifier: Apache-2.0
"""Manifests find damaged files; the processes of a job share the work of hashing them."""

import errno
import json
import os
import threading

import pytest

from transformer_jax.checkpoints import manifest
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts

MIB = 2**20


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "params" / "d" / "array").write_bytes(bytes(range(256)))
    (tmp_path / "params" / "empty").touch()
    (tmp_path / "data" / "state").write_text('{"position": 7}')
    (tmp_path / "note").write_text("rewritten later")
    manifest.write_manifest(tmp_path)
    return tmp_path


def test_untouched_files_are_intact(folder):
    assert manifest.find_damage(folder) is None


def test_it_lists_the_files_of_subfolders_with_size_and_hash(folder):
    entries = json.loads((folder / manifest.MANIFEST).read_text())["files"]
    assert set(entries) == {"params/d/array", "params/empty", "data/state"}
    assert entries["params/empty"] == {
        "size": 0,
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }


@pytest.mark.parametrize("bit", [0, 1000, 2047])
def test_a_flipped_bit_is_found(folder, bit):
    path = folder / "params" / "d" / "array"
    contents = bytearray(path.read_bytes())
    contents[bit // 8] ^= 1 << bit % 8
    path.write_bytes(contents)
    assert "params/d/array" in manifest.find_damage(folder)


def test_every_flipped_bit_of_the_manifest_is_found(folder):
    """Also a bit in a file name, although only some subfolders are verified."""
    path = folder / manifest.MANIFEST
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert manifest.MANIFEST in (manifest.find_damage(folder, ["params"]) or ""), (
                place,
                bit,
            )


def test_a_manifest_without_a_digest_of_its_own_is_read(folder):
    path = folder / manifest.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())["files"]))
    assert manifest.find_damage(folder) is None


def test_a_truncated_file_is_found(folder):
    (folder / "data" / "state").write_text('{"posi')
    assert "data/state" in manifest.find_damage(folder)


def test_a_missing_file_is_found(folder):
    (folder / "params" / "empty").unlink()
    assert manifest.find_damage(folder) == "params/empty is missing"


def test_a_folder_in_place_of_a_file_is_found(folder):
    (folder / "params" / "empty").unlink()
    (folder / "params" / "empty").mkdir()
    assert manifest.find_damage(folder) == "params/empty cannot be read"


@pytest.mark.parametrize("name", ["params/d/array", "manifest.json"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_not_damaged(folder, name, number, monkeypatch):
    opened = os.open

    def failing(path, *args, **kwargs):
        if path == folder / name:
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UserError, match=f"{name} cannot be read: {os.strerror(number)}; it may be"):
        manifest.find_damage(folder)


def test_a_pipe_in_place_of_a_file_is_found_without_waiting(folder):
    (folder / "params" / "empty").unlink()
    os.mkfifo(folder / "params" / "empty")
    assert manifest.find_damage(folder) == "params/empty cannot be read"


@pytest.mark.parametrize(
    "name", ["params/../../{}/secret", "/dev/zero", "params/../../../dev/zero", "params//x"]
)
def test_a_name_that_leaves_the_folder_is_not_followed(folder, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").touch()
    name = name.format(outside.name)
    manifest.write_entries(folder, {name: manifest.read_entries(folder)["params/empty"]})
    assert manifest.find_damage(folder) == f"{name!r} is outside the folder"


def test_a_file_of_another_size_is_not_read(folder, monkeypatch):
    path = folder / "params" / "d" / "array"
    os.truncate(path, 40 * 2**30)  # sparse
    monkeypatch.setattr(manifest, "_entry", None)  # would fail
    assert "params/d/array is not what was written" in manifest.find_damage(folder, ("params",))


def test_unlisted_files_are_ignored(folder):
    (folder / "params" / ".nfs0001").touch()
    (folder / "note").write_text("rewritten")
    assert manifest.find_damage(folder) is None


def test_only_the_given_subfolders_are_verified(folder):
    (folder / "data" / "state").unlink()
    assert manifest.find_damage(folder, ("params",)) is None
    assert manifest.find_damage(folder, ("params", "data")) == "data/state is missing"


def test_no_manifest(folder):
    (folder / manifest.MANIFEST).unlink()
    assert manifest.find_damage(folder) == "manifest.json is missing"


@pytest.mark.parametrize("contents", [b"", b'{"params/empty": {"si', b"[]", b"\xff\xfe"])
def test_an_unreadable_manifest(folder, contents):
    (folder / manifest.MANIFEST).write_bytes(contents)
    assert manifest.find_damage(folder) == "manifest.json cannot be read"


def test_a_flipped_bit_of_the_manifest_is_found_or_harmless(folder):
    path = folder / manifest.MANIFEST
    written = path.read_bytes()
    entries = json.loads(written)
    for bit in range(0, 8 * len(written), 11):
        contents = bytearray(written)
        contents[bit // 8] ^= 1 << bit % 8
        path.write_bytes(contents)
        # What is found intact must have been read as the same list of files.
        assert manifest.find_damage(folder) is not None or json.loads(contents) == entries


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "7"
    (folder / "params" / "d").mkdir(parents=True)
    for number in range(7):
        (folder / "params" / "d" / str(number)).write_bytes(bytes([number]) * 100 * number)
    return folder


@pytest.fixture
def notes(monkeypatch):
    """Replaces the key-value service of a job by a dict."""
    left, changed = {}, threading.Condition()

    def kv_set(name, value):
        with changed:
            left[name] = value
            changed.notify_all()

    def kv_get(name, seconds):
        with changed:
            changed.wait_for(lambda: name in left, seconds)
            return left.get(name)

    def kv_delete(name):
        for key in [key for key in left if key.startswith(f"{name}/")]:
            del left[key]

    for function in (kv_set, kv_get, kv_delete):
        monkeypatch.setattr(hosts, function.__name__, function)
    return left


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_are_disjoint_complete_and_balanced(count):
    sizes = {f"d/{i}": size * MIB for i, size in enumerate([9, 1, 7, 7, 2, 0, 0, 5, 3, 8, 6, 4])}
    parts = [manifest.share_of_files(sizes, process, count) for process in range(count)]
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    nbytes = [sum(sizes[name] for name in part) for part in parts]
    assert max(nbytes) - min(nbytes) <= 2 * MIB


def test_one_process_of_many_finds_a_damaged_file(saved):
    manifest.write_manifest(saved)
    (saved / "params" / "d" / "6").write_bytes(bytes(600))
    found = [manifest.find_damage(saved, ("params",), (process, 3)) for process in range(3)]
    assert sorted(text for text in found if text) == [manifest.find_damage(saved)]


def test_processes_write_the_manifest_of_one_and_read_each_file_once(saved, notes, monkeypatch):
    entry_of, read = manifest._entry_of, []
    monkeypatch.setattr(
        manifest, "_entry_of", lambda path: read.append(path.name) or entry_of(path)
    )
    others = [
        threading.Thread(target=manifest.help_write_manifest, args=(saved, "saves/0", process, 3))
        for process in (1, 2)
    ]
    for other in others:
        other.start()
    manifest.write_manifest_in_job(saved, "saves/0", 3)
    for other in others:
        other.join()
    assert sorted(read) == list("0123456") and notes == {}
    entries = manifest.read_entries(saved)
    manifest.write_manifest(saved)
    assert list(entries.items()) == list(manifest.read_entries(saved).items())


@pytest.mark.parametrize("told", [None, {}, {"params/d/6": {"size": 5, "sha256": ""}}])
def test_process_0_hashes_what_the_others_did_not_or_saw_differently(
    saved, notes, monkeypatch, told
):
    monkeypatch.setattr(manifest, "_SECONDS_TO_HASH", 0.1)
    if told is not None:
        notes["saves/0/1"] = told
    manifest.write_manifest_in_job(saved, "saves/0", 2)
    assert manifest.find_damage(saved) is None
    assert len(manifest.read_entries(saved)) == 7


def test_a_process_that_cannot_read_its_share_reports_it_at_once(saved, notes):
    notes["saves/0/files"] = {"params/d/gone": 5}
    manifest.help_write_manifest(saved, "saves/0", 0, 1)
    assert notes["saves/0/0"] == {}


def test_no_process_waits_for_a_failed_save(saved, notes, monkeypatch):
    monkeypatch.setattr(manifest, "_SECONDS_OF_A_SAVE", 0.01)
    manifest.help_write_manifest(saved, "saves/0", 1, 2)
    assert notes == {}


def test_a_single_process_verifies_everything(saved):
    manifest.write_manifest(saved)
    assert manifest.find_damage_in_job(saved) is None
    (saved / "params" / "d" / "3").unlink()
    assert manifest.find_damage_in_job(saved, ("params",)) == "params/d/3 is missing"
