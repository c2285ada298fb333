# SPDX-License-Identifier: Apache-2.0
"""Atomic writing, links, locks and names of files."""

import errno
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import (
    PARTIAL,
    NoLocksError,
    atomic_folder,
    atomic_writer,
    entries_below,
    is_safe_name,
    open_locked,
    open_to_append,
    path_below,
    path_of_published,
    read_regular,
    remove,
    write_atomic,
)


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_writer(path) as file:
        file.write("neü".encode())
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "neü"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_as_it_was(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_writer(path):
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_file_never_share_a_temporary_file(tmp_path):
    path = tmp_path / "file"
    with atomic_writer(path) as one, atomic_writer(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_text() == "one"  # ended last
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: write_atomic(path, f"{i}" * 1000), range(100)))
    assert len(set(path.read_text())) <= 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_later_writer_deletes_what_killed_ones_left(tmp_path):
    for name in ("file.01234567.partial", "file.89abcdef.partial", "file.txt.89abcdef.partial"):
        (tmp_path / name).write_text("killed")
    long_ago = time.time() - 4000
    for name in ("file.01234567.partial", "file.txt.89abcdef.partial"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    write_atomic(tmp_path / "file", "new")
    names = {left.name for left in tmp_path.iterdir()}
    assert names == {"file", "file.89abcdef.partial", "file.txt.89abcdef.partial"}


def test_a_link_is_replaced_and_its_target_kept(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "file").symlink_to(precious)
    write_atomic(tmp_path / "file", "new")
    assert precious.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()


def test_links_are_not_appended_to(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "file").symlink_to(precious)
    with pytest.raises(OSError, match="file"):
        open_to_append(tmp_path / "file")
    assert precious.read_text() == "mine"


def link(path, tmp_path):
    path.symlink_to(tmp_path / "precious")


def dangling(path, tmp_path):
    path.symlink_to(tmp_path / "nowhere")


def pipe(path, tmp_path):
    os.mkfifo(path)


def socket_file(path, tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def folder(path, tmp_path):
    path.mkdir()


@pytest.mark.parametrize("become", [link, dangling, pipe, socket_file, folder])
def test_only_regular_files_are_read_or_appended_to(tmp_path, monkeypatch, become):
    (tmp_path / "precious").write_text("mine")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = tmp_path / "file"
    become(path.relative_to(tmp_path), tmp_path)
    with pytest.raises(OSError, match=str(path)):
        read_regular(path)
    with pytest.raises(OSError, match=str(path)):
        open_to_append(path)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_entries_below_a_folder_do_not_include_those_behind_links(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (tmp_path / "run" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "file").touch()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    found = {
        os.path.relpath(entry.path, tmp_path / "run") for entry in entries_below(tmp_path / "run")
    }
    assert found == {"deep", "deep/er", "deep/file", "link"}
    assert list(entries_below(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("become", [link, pipe, folder])
def test_links_are_removed_and_not_followed(tmp_path, become):
    (tmp_path / "precious").write_text("mine")
    become(tmp_path / "file", tmp_path)
    remove(tmp_path / "file")
    remove(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def change_during_removal(monkeypatch, change):
    """Runs `change` just before each of the next two folders is deleted."""
    rmdir, changes = os.rmdir, iter([change, change])

    def change_and_rmdir(path, *, dir_fd=None):
        next(changes, lambda: None)()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", change_and_rmdir)


def test_a_folder_to_which_others_write_is_removed(tmp_path, monkeypatch):
    busy = tmp_path / "busy"
    busy.mkdir()
    change_during_removal(monkeypatch, (busy / "lock").touch)
    remove(busy)
    assert not busy.exists()


def test_a_folder_that_others_remove_too_is_removed(tmp_path, monkeypatch):
    busy = tmp_path / "busy"
    busy.mkdir()
    rmdir = os.rmdir
    change_during_removal(monkeypatch, lambda: busy.exists() and rmdir(busy))
    remove(busy)
    assert not busy.exists()


HOLDER = """
import pathlib, sys
from transformer_jax.runtime.files import open_locked
file = open_locked(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_the_file_or_the_process_that_holds_it(tmp_path):
    path = tmp_path / "lock"
    words = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            open_locked(path)
        holder.kill()
    with open_locked(path) as file:
        file.write("mine")
        with pytest.raises(BlockingIOError):
            open_locked(path)
    open_locked(path, wait=True).close()
    assert path.read_text() == "mine"


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(NoLocksError, match="No locks available"):
        open_locked(tmp_path / "lock")


ODD_NAMES = ["", "/abs", "x//abs", "x/", ".", "..", "./x", "x/./y", "../x", "x/../../y"]
ODD_NAMES += ["C:x", "c:/x", "x\\y", "..\\x", "x\0y", "x/" + 231 * "n", "ü" * 116]


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, assert_refused):
    assert not any(map(is_safe_name, ODD_NAMES))
    message = f" is not the name of a file below {tmp_path}"
    assert_refused(
        {
            name: (lambda name=name: path_below(tmp_path, name), repr(name) + message)
            for name in ODD_NAMES
        }
    )


def test_any_other_name_is_a_path_below_the_folder(tmp_path):
    for name in ("a", "a/b", "..a", "a..", ".hidden/b", "a b", "ab:c", "ü/\n"):
        assert is_safe_name(name) and path_below(tmp_path, name) == tmp_path / name


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for one in (folder / "real", elsewhere):
        one.mkdir(parents=True)
    (folder / "out").symlink_to(elsewhere)
    (folder / "in").symlink_to("real")
    (tmp_path / "link").symlink_to(folder)
    for name in ("out", "out/x"):
        with pytest.raises(UserError, match="leads out of"):
            path_below(folder, name)
    assert path_below(folder, "in/x") == folder / "in/x"
    assert path_below(tmp_path / "link", "real/x") == tmp_path / "link/real/x"  # itself a link


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_is_written_completely_or_not_at_all(tmp_path, is_there):
    """An existing folder may be a disk of its own, so that it cannot be replaced."""
    folder = tmp_path / "there" / "run"
    if is_there:
        folder.mkdir(parents=True)
        before = folder.stat().st_ino
    with pytest.raises(RuntimeError), atomic_folder(folder, "--to") as partial:
        (partial / "half").write_text("x")
        raise RuntimeError
    assert folder.exists() == is_there
    left = folder / PARTIAL if is_there else folder.with_name(f".run{PARTIAL}")
    (left / "killed").mkdir(parents=True)  # as a killed process leaves it
    (left / "killed" / "file").write_text("x")
    with atomic_folder(folder, "--to") as partial:
        (partial / "file").write_text("whole")
        assert not (folder / "file").exists()
        with (
            pytest.raises(UserError, match="another process is writing"),
            atomic_folder(folder, "--to"),
        ):
            pass
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    assert not is_there or folder.stat().st_ino == before
    with pytest.raises(UserError, match="--to: .* is not empty"), atomic_folder(folder, "--to"):
        pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    full = pytest.raises(UserError, match="run cannot be written: No space left on device")
    with full, atomic_folder(tmp_path / "run", "--to"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be"), atomic_folder(tmp_path / "file/run", "--to"):
        pass


def test_links_within_a_published_model_and_the_hubs_cache(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/1", tmp_path / "models--a--b/blobs"
    for folder in (snapshot, blobs, tmp_path / "outside"):
        folder.mkdir(parents=True)
    (blobs / "f").write_text("x")
    (tmp_path / "outside/f").write_text("secret")
    (snapshot / "good").symlink_to("../../blobs/f")
    (snapshot / "beside").symlink_to("good")
    (snapshot / "bad").symlink_to(tmp_path / "outside/f")
    (tmp_path / "link").symlink_to(snapshot)
    for path in (snapshot / "good", snapshot / "beside", tmp_path / "link/good"):
        assert path_of_published(path) == blobs / "f"
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling/f").symlink_to("../../../blobs/f")
    (snapshot / "2_Pooling").symlink_to(tmp_path / "outside")
    assert path_of_published(snapshot / "1_Pooling/f", snapshot) == blobs / "f"
    for path in (snapshot / "bad", snapshot / "2_Pooling/f"):
        with pytest.raises(OSError, match="it is a link that leads out of its folder"):
            path_of_published(path, snapshot)
