# SPDX-License-Identifier: Apache-2.0
"""Manifests find damaged files."""

import errno
import json
import os

import pytest

from transformer_jax.checkpoints import manifest
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runtime import files


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


def test_it_lists_the_files_of_subfolders_with_size_and_hash(folder):
    path = folder / manifest.MANIFEST
    entries = json.loads(path.read_text())["files"]
    assert set(entries) == {"params/d/array", "params/empty", "data/state"}
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert entries["params/empty"] == {"size": 0, "sha256": digest}
    assert manifest.find_damage(folder) is None
    (folder / "params" / ".nfs0001").touch()  # unlisted files are ignored
    (folder / "note").write_text("rewritten")
    path.write_text(json.dumps(entries))  # without a digest of its own
    assert manifest.find_damage(folder) is None


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_found(folder):
    """Also a bit in a file name, although only some subfolders are verified."""
    path = folder / manifest.MANIFEST
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = bytes([whole[place] ^ 1 << place % 8])
        path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        assert manifest.MANIFEST in (manifest.find_damage(folder, ["params"]) or ""), place


def content(text):
    return lambda path: path.write_bytes(text)


DAMAGES = [
    ("data/state", content(b'{"posi'), "is not what was written (its size"),
    ("params/empty", lambda path: None, "is missing"),
    ("params/empty", os.mkdir, "cannot be read"),
    ("params/empty", os.mkfifo, "cannot be read"),  # without waiting for a writer
    ("manifest.json", lambda path: None, "is missing"),
    ("manifest.json", content(b""), "cannot be read"),
    ("manifest.json", content(b'{"params/empty": {"si'), "cannot be read"),
    ("manifest.json", content(b"[]"), "cannot be read"),
    ("manifest.json", content(b"\xff\xfe"), "cannot be read"),
]
"""(file, what is made in its place, words about it)"""


def test_damage_is_described(folder):
    failures = []
    for name, make, words in DAMAGES:
        before = (folder / name).read_bytes()
        (folder / name).unlink()
        make(folder / name)
        problem = manifest.find_damage(folder)
        if problem is None or not problem.startswith(f"{name} {words}"):
            failures.append((name, words, problem))
        files.remove(folder / name)
        (folder / name).write_bytes(before)
    assert failures == [] and manifest.find_damage(folder) is None


@pytest.mark.parametrize("name", ["params/d/array", "manifest.json"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_not_damaged(folder, name, number, monkeypatch):
    opened = os.open

    def failing(path, *args, **kwargs):
        if os.fspath(path) == str(folder / name):
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UserError, match=f"{name} cannot be read: {os.strerror(number)}; it may be"):
        manifest.find_damage(folder)


@pytest.mark.parametrize(
    "name", ["params/../../{}/secret", "/dev/zero", "params/../../../dev/zero", "params//x"]
)
def test_a_name_that_leaves_the_folder_is_not_followed(folder, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").touch()
    name = name.format(outside.name)
    manifest.write_entries(folder, {name: manifest.read_entries(folder)["params/empty"]})
    assert manifest.find_damage(folder) == "manifest.json cannot be read"


@pytest.mark.parametrize("reader", ["process 0", "another, same folder", "another, own copy"])
def test_process_0_and_owners_of_a_copy_verify_a_checkpoint(folder, monkeypatch, reader):
    (folder / "data" / "state").unlink()
    file_of_0 = "a copy" if "own copy" in reader else manifest._identity(folder / "manifest.json")
    of_0 = [file_of_0, None]
    monkeypatch.setattr(hosts, "is_primary", lambda: reader == "process 0")
    monkeypatch.setattr(hosts, "gather", lambda value: [of_0.pop(0), value])
    problem = manifest.find_damage_in_job(folder)
    assert problem == (None if "same" in reader else "data/state is missing")
