import json
import os
import re
from pathlib import Path

import pytest

from transformer_jax.buckets import copies, lease
from transformer_jax.buckets.bucket import Bucket, MirrorLayout, Missing
from transformer_jax.buckets.copies import (
    fetched,
    fetched_file,
    fetched_matches,
    folder_to_upload,
    send,
    working_copy,
)
from transformer_jax.errors import UserError

LAYOUT = MirrorLayout(
    unit=re.compile(r"steps/[0-9]+(?=/)"),
    seal="seal",
    listed=lambda folder: [],
    passing=re.compile(r"\.partial$"),
    damage=lambda folder: None,
)


@pytest.fixture
def brought(monkeypatch):
    """The names of the files that were downloaded."""
    names, download = [], Bucket.download

    def noted(self, name, target):
        names.append(name)
        download(self, name, target)

    monkeypatch.setattr(Bucket, "download", noted)
    return names


def names_in(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_only_what_has_changed_is_fetched_again(address, at, brought):
    for name in ("a", "b/c", "b/d", ".lease/1", "steps/1/x", "steps/2/x", "steps/2/seal"):
        at.write(name, name.encode())
    folder = fetched(address, lambda name: name != "b/d", LAYOUT)
    assert folder.name == "one"
    assert names_in(folder) == {"a", "b/c", "steps/2/x", "steps/2/seal"} == set(brought)
    assert (folder / "b/c").read_bytes() == b"b/c"
    brought.clear()
    at.write("a", b"new")
    at.delete("b/c")
    assert fetched(address, layout=LAYOUT) == folder
    assert set(brought) == {"a", "b/d"}
    assert names_in(folder) == {"a", "b/d", "steps/2/x", "steps/2/seal"}
    assert (folder / "a").read_bytes() == b"new"


def test_a_file_is_fetched_with_nothing_beside_it(address, at, brought):
    at.write("data/a.txt", b"a")
    at.write("data/b.txt", b"b")
    at.write("data/c.md", b"c")
    assert fetched_file(f"{address}/data/b.txt").read_bytes() == b"b"
    assert brought == ["b.txt"]
    assert [p.name for p in fetched_matches(f"{address}/data/*.txt")] == ["a.txt", "b.txt"]
    assert fetched_matches(f"{address}/data/*.gz") == []
    for use in (fetched, fetched_file):
        with pytest.raises(Missing, match=f"there is nothing at {address}/none"):
            use(f"{address}/none")


OUTSIDE = ["../../out", "b/../../out", "/out", "b//out", "b\\out"]


def test_names_that_lead_out_of_a_copy_are_left_out(monkeypatch, at, address, caplog):
    at.write("a", b"")
    find = type(at._system).find

    def hostile(system, *args, **kwargs):
        found = find(system, *args, **kwargs)
        return found | {f"{at._root}/{name}": {"size": 1} for name in OUTSIDE}

    monkeypatch.setattr(type(at._system), "find", hostile)
    for _ in range(2):
        assert at.entries().keys() == {"a"}
    (told,) = [record.getMessage() for record in caplog.records]  # once
    assert "5 files are left out" in told and told.endswith("the first: '../../out'")
    assert names_in(fetched(address)) == {"a"}


def test_an_absolute_name_overwrites_nothing(monkeypatch, at, address, tmp_path):
    """An object store may have a key "RUN//home/user/.bashrc"."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    at.write("a", b"")
    name = f"/{precious}"
    find = type(at._system).find

    def hostile(system, *args, **kwargs):
        return find(system, *args, **kwargs) | {f"{at._root}/{name[1:]}": {"size": 1, "ETag": "1"}}

    with monkeypatch.context() as patched:
        patched.setattr(type(at._system), "find", hostile)
        patched.setattr(type(at._system), "get_file", lambda _, __, to: Path(to).write_text("bad"))
        folder = fetched(address)
    assert precious.read_text() == "mine" and names_in(folder) == {"a"}


def test_what_an_index_names_elsewhere_is_not_removed(at, address, tmp_path):
    """Earlier versions wrote there, and noted it."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    at.write("a", b"")
    index = fetched(address).parents[1] / copies._INDEX
    index.write_text(json.dumps({str(precious): "1", "../../../precious": "1"}))
    fetched(address)
    assert precious.read_text() == "mine" and json.loads(index.read_text()).keys() == {"a"}


def test_a_link_in_a_copy_is_not_written_through(at, address, tmp_path):
    at.write("a", b"")
    folder = fetched(address)
    (tmp_path / "elsewhere").mkdir()
    (folder / "b").symlink_to(tmp_path / "elsewhere")
    at.write("b/c", b"")
    with pytest.raises(UserError, match="leads out of .* through a link"):
        fetched(address)
    assert not list((tmp_path / "elsewhere").iterdir())
    at.delete("b/c")
    (tmp_path / "elsewhere" / "c").write_text("mine")
    (folder.parents[1] / copies._INDEX).write_text(json.dumps({"b/c": "1"}))
    with pytest.raises(UserError, match="leads out of .* through a link"):  # nor is it removed
        fetched(address)
    assert (tmp_path / "elsewhere" / "c").read_text() == "mine"


@pytest.mark.parametrize("ending", ["..", "."])
def test_a_copy_lies_below_its_home(at, address, ending):
    at.write(f"{ending}/index.json", b"")
    try:
        folder = fetched(f"{address}/{ending}")
    except UserError:  # of a file system that resolves such parts
        return
    assert folder.parent.name == "files" and folder.name == "_"


def test_what_is_exported_to_an_address_is_brought_there(address, at, tmp_path):
    with folder_to_upload(str(tmp_path / "here")) as folder:
        assert folder == tmp_path / "here"
    with folder_to_upload(address) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "model").write_bytes(b"weights")
    assert at.read("deep/model") == b"weights"
    with pytest.raises(UserError, match=f"{address} is not empty"), folder_to_upload(address):
        pass


def test_outputs_go_back_to_where_a_copy_is_from(address, at, tmp_path):
    at.write("config", b"")
    folder = fetched(address)
    (folder / "predictions").mkdir()
    (folder / "predictions" / "test").write_bytes(b"good")
    send(folder / "predictions" / "test")
    assert at.read("predictions/test") == b"good"
    (tmp_path / "elsewhere").write_bytes(b"")
    send(tmp_path / "elsewhere")
    assert at.entries().keys() == {"config", "predictions/test"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)`: from now on, all is on another machine."""

    def at_machine(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return at_machine


def test_the_copy_that_was_written_last_is_gone_on_from(address, at, machine):
    machine("a")
    with working_copy(address, LAYOUT) as first:
        (first / "x").write_bytes(b"1")
    (first / "x").write_bytes(b"2")  # as of a killed process, which had no time to bring it
    with working_copy(address, LAYOUT) as again:
        assert again == first and (again / "x").read_bytes() == b"2"
    assert at.read("x") == b"2"
    machine("b")
    with working_copy(address, LAYOUT) as other:
        assert other != first and (other / "x").read_bytes() == b"2"
        (other / "x").write_bytes(b"3")
    machine("a")
    (first / "x").write_bytes(b"stale")
    (first / "y").write_bytes(b"stale")
    with working_copy(address, LAYOUT) as again:
        assert again == first and names_in(again) == {"x"} and (again / "x").read_bytes() == b"3"
    assert at.read("x") == b"3"


def test_a_copy_that_was_being_cleared_counts_as_none(address, at, machine, monkeypatch):
    machine("b")
    with working_copy(address, LAYOUT) as other:
        (other / "x").write_bytes(b"right")
    machine("a")
    with monkeypatch.context() as patched:
        patched.setattr(copies, "Lease", None)  # killed after it was cleared
        with pytest.raises(TypeError), working_copy(address, LAYOUT):
            pass
    with working_copy(address, LAYOUT) as own:
        assert (own / "x").read_bytes() == b"right"


def test_one_process_of_a_machine_writes_at_a_time(address):
    told = f"{address}: another process on this machine is training there"
    with (
        working_copy(address, LAYOUT),
        pytest.raises(UserError, match=told),
        working_copy(address, LAYOUT),
    ):
        pass


def test_one_machine_writes_at_a_time(address, machine, monkeypatch):
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.05)
    machine("a")
    with working_copy(address, LAYOUT):
        machine("b")
        told = f"{address}: process {os.getpid()} on .* is training there; wait for it"
        with pytest.raises(UserError, match=told), working_copy(address, LAYOUT):
            pass
        machine("a")


def test_without_a_home_there_is_no_copy(address, monkeypatch):
    monkeypatch.setattr(copies, "cache_folder", lambda name: None)
    with pytest.raises(UserError, match=f"{address} needs a copy here.*set XDG_CACHE_HOME"):
        fetched(address)
