# SPDX-License-Identifier: Apache-2.0
"""Copies of files at an address: fetched, written to, and uploaded."""

import os
from functools import partial

import pytest

from tests.buckets.conftest import LAYOUT, files_of
from tests.refusals import assert_refused
from transformer_jax.buckets import copies, lease
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.errors import UserError

SEAL = f"steps/2/{LAYOUT.seal}"


@pytest.fixture
def downloaded(monkeypatch):
    """The names of the files that were downloaded."""
    names = []
    download = Bucket.download

    def record(self, name, target):
        names.append(name)
        download(self, name, target)

    monkeypatch.setattr(Bucket, "download", record)
    return names


def test_only_changed_files_are_fetched_again(address, at, downloaded):
    for name in ("a", "b/c", "b/d", ".lease/1", "steps/1/x", "steps/2/x", SEAL):
        at.write(name, name.encode())
    folder = copies.fetch_folder(address, lambda name: name != "b/d", LAYOUT)
    assert folder.name == "one" and {*downloaded} == {"a", "b/c", "steps/2/x", SEAL}
    assert files_of(folder) == {name: name.encode() for name in downloaded}
    downloaded.clear()
    at.write("a", b"new")
    at.delete("b/c")
    assert copies.fetch_folder(address, layout=LAYOUT) == folder
    assert {*downloaded} == {"a", "b/d"}
    kept = {name: name.encode() for name in ("b/d", "steps/2/x", SEAL)}
    assert files_of(folder) == kept | {"a": b"new"}


def test_a_file_is_fetched_without_its_neighbors(address, at, downloaded):
    for name in ("a.txt", "b.txt", "c.md"):
        at.write(f"data/{name}", name.encode())
    assert copies.fetch_file(f"{address}/data/b.txt").read_bytes() == b"b.txt"
    assert downloaded == ["b.txt"]
    assert [p.name for p in copies.fetch_matching(f"{address}/data/*.txt")] == ["a.txt", "b.txt"]
    assert copies.fetch_matching(f"{address}/data/*.gz") == []
    for fetch in (copies.fetch_folder, copies.fetch_file):
        assert_refused({f"there is nothing at {address}/none": partial(fetch, f"{address}/none")})


def test_names_that_lead_out_of_a_copy_are_skipped(monkeypatch, at, address, caplog):
    at.write("a", b"")
    files = at._system.find(at._root, detail=True)
    outside = ["../../out", "b/../../out", "/out", "b//out", "b\\out"]
    files |= {f"{at._root}/{name}": {"size": 1} for name in outside}
    monkeypatch.setattr(type(at._system), "find", lambda *args, **options: files)
    assert files_of(copies.fetch_folder(address)).keys() == {"a"}
    (message,) = caplog.messages
    assert "skipping 5 files" in message and message.endswith("as '../../out'")


@pytest.mark.parametrize("ending", ["..", "."])
def test_a_copy_is_inside_its_home(at, address, ending):
    at.write(f"{ending}/index.json", b"")
    try:
        folder = copies.fetch_folder(f"{address}/{ending}")
    except UserError:  # a file system resolves such parts
        return
    assert folder.parent.name == "files" and folder.name == "_"


def test_a_folder_for_an_address_is_uploaded(address, at, tmp_path):
    with copies.folder_to_upload(str(tmp_path / "here")) as folder:
        assert folder == tmp_path / "here"
    with copies.folder_to_upload(address) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "model").write_bytes(b"weights")
    assert at.read("deep/model") == b"weights"
    assert_refused({f"{address} is not empty": copies.folder_to_upload(address).__enter__})


def test_outputs_are_written_back_to_the_address(address, at, tmp_path):
    at.write("config", b"")
    folder = copies.fetch_folder(address)
    (folder / "predictions").mkdir()
    (folder / "predictions" / "test").write_bytes(b"good")
    copies.write_back(folder / "predictions" / "test")
    assert at.read("predictions/test") == b"good"
    (tmp_path / "elsewhere").write_bytes(b"")
    copies.write_back(tmp_path / "elsewhere")
    assert at.entries().keys() == {"config", "predictions/test"}


def test_what_is_written_below_a_relative_cache_folder_is_uploaded(
    address, at, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    at.write("config", b"")
    outputs = copies.fetch_folder(address) / "outputs"
    outputs.write_bytes(b"good")
    copies.write_back(outputs)
    assert at.read("outputs") == b"good"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)`: switches to the cache of another machine."""
    return lambda name: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def test_the_last_writers_copy_is_used_again(address, at, machine):
    machine("a")
    with copies.working_copy(address, LAYOUT) as first:
        (first / "x").write_bytes(b"1")
    (first / "x").write_bytes(b"2")  # as of a killed process, which had no time to upload it
    with copies.working_copy(address, LAYOUT) as again:
        assert again == first and (again / "x").read_bytes() == b"2"
    assert at.read("x") == b"2"
    machine("b")
    with copies.working_copy(address, LAYOUT) as other:
        assert other != first and (other / "x").read_bytes() == b"2"
        (other / "x").write_bytes(b"3")
    machine("a")
    (first / "x").write_bytes(b"stale")
    (first / "y").write_bytes(b"stale")
    with copies.working_copy(address, LAYOUT) as again:
        assert again == first and files_of(again) == {"x": b"3"}
    assert at.read("x") == b"3"


def test_a_copy_that_was_being_cleared_is_not_used_again(address, at, machine, monkeypatch):
    machine("b")
    with copies.working_copy(address, LAYOUT) as other:
        (other / "x").write_bytes(b"right")
    machine("a")
    with monkeypatch.context() as patched, pytest.raises(TypeError):
        patched.setattr(copies, "Lease", None)  # killed after it was cleared
        copies.working_copy(address, LAYOUT).__enter__()
    with copies.working_copy(address, LAYOUT) as own:
        assert (own / "x").read_bytes() == b"right"


def test_one_process_writes_at_a_time(address, machine, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    machine("a")
    with copies.working_copy(address, LAYOUT):
        busy = f"{address}: another process on this machine is training there"
        assert_refused({busy: copies.working_copy(address, LAYOUT).__enter__})
        machine("b")
        busy = f"{address}: process {os.getpid()} on "
        assert_refused({busy: copies.working_copy(address, LAYOUT).__enter__})
        machine("a")


def test_without_a_home_there_is_no_copy(address, monkeypatch):
    monkeypatch.setattr(copies.files, "cache_folder", lambda name: None)
    words = f"{address} needs a copy here, and no home folder: set XDG_CACHE_HOME"
    assert_refused({words: lambda: copies.fetch_folder(address)})
