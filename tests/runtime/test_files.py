# SPDX-License-Identifier: Apache-2.0
"""Atomic writing, links, locks and names of files."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.conftest import FILE_DAMAGE
from tests.refusals import assert_refused
from transformer_jax.errors import UserError
from transformer_jax.runtime import files
from transformer_jax.runtime.files import read_made, remake, write_made


def test_a_file_or_link_is_replaced_when_the_new_file_is_complete(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("old")
    path = tmp_path / "file"
    path.symlink_to(precious)
    with pytest.raises(KeyboardInterrupt), files.atomic_writer(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    with files.atomic_writer(path) as file:
        file.write("neü".encode())
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "neü"
    assert precious.read_text() == "old" and not path.is_symlink()
    assert {*tmp_path.iterdir()} == {path, precious}


def test_writers_of_one_file_never_share_a_temporary_file(tmp_path):
    path = tmp_path / "file"
    with files.atomic_writer(path) as one, files.atomic_writer(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_text() == "one"  # ended last
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: files.write_atomic(path, f"{i}" * 1000), range(100)))
    assert len(set(path.read_text())) <= 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_later_writer_deletes_what_killed_ones_left(tmp_path):
    for name in ("file.01234567.partial", "file.89abcdef.partial", "file.txt.89abcdef.partial"):
        (tmp_path / name).write_text("killed")
    long_ago = time.time() - 4000
    for name in ("file.01234567.partial", "file.txt.89abcdef.partial"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    files.write_atomic(tmp_path / "file", "new")
    kept = {"file", "file.89abcdef.partial", "file.txt.89abcdef.partial"}
    assert {*os.listdir(tmp_path)} == kept


NOT_REGULAR = {
    "link": lambda path: path.symlink_to("precious"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_only_regular_files_are_read_or_appended_to(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    Path("precious").write_text("mine")
    path = Path("file")
    NOT_REGULAR[kind](path)
    for use in (files.read_regular, files.open_to_append):
        with pytest.raises(OSError, match="file"):
            use(path)
    for _ in range(2):
        files.remove(path)
    assert Path("precious").read_text() == "mine"
    assert os.listdir() == ["precious"]


def test_entries_below_a_folder_do_not_include_those_behind_links(tmp_path):
    run = tmp_path / "run"
    (tmp_path / "outside/secret").mkdir(parents=True)
    (run / "deep/er").mkdir(parents=True)
    (run / "deep/file").touch()
    (run / "link").symlink_to(tmp_path / "outside")
    names = ("deep", "deep/er", "deep/file", "link")
    assert sorted(Path(entry.path) for entry in files.entries_below(run)) == [
        run / name for name in names
    ]
    assert list(files.entries_below(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("others", ["write", "remove"])
def test_a_folder_that_others_change_too_is_removed(tmp_path, monkeypatch, others):
    busy = tmp_path / "busy"
    busy.mkdir()
    rmdir = os.rmdir
    changes = [(busy / "lock").touch if others == "write" else partial(rmdir, busy)]

    def change_and_rmdir(path, *, dir_fd=None):
        if changes:
            changes.pop()()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", change_and_rmdir)
    files.remove(busy)
    assert not busy.exists()


def test_a_lock_ends_with_the_file_that_holds_it(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    with files.open_locked(path) as file:
        file.write("mine")
        with pytest.raises(BlockingIOError):
            files.open_locked(path)
    files.open_locked(path, wait=True).close()
    assert path.read_text() == "mine"
    no_locks = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(files.NoLocksError, match="No locks available"):
        files.open_locked(path)


ODD_NAMES = ["", "/abs", "x//abs", "x/", ".", "..", "./x", "x/./y", "../x", "x/../../y"]
ODD_NAMES += ["C:x", "c:/x", "x\\y", "..\\x", "x\0y", "x/" + 231 * "n", "ü" * 116]


def test_a_name_or_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "folder"
    (folder / "real").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    (folder / "in").symlink_to("real")
    (tmp_path / "link").symlink_to(folder)
    assert not any(map(files.is_safe_name, ODD_NAMES))
    below = partial(files.path_below, folder)
    out = f" leads out of {folder} through a link; remove the link"
    assert_refused(
        {f"{name!r} is not the name of a file below": partial(below, name) for name in ODD_NAMES}
        | {f"{str(folder / name)!r}{out}": partial(below, name) for name in ("out", "out/x")}
    )
    for name in ("a", "a/b", "..a", "a..", ".hidden/b", "a b", "ab:c", "ü/\n", "in/x"):
        assert files.is_safe_name(name) and below(name) == folder / name
    link = tmp_path / "link"  # the folder may itself be one
    assert files.path_below(link, "real/x") == link / "real/x"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_is_written_completely_or_not_at_all(tmp_path, is_there):
    """An existing folder may be a disk of its own, so that it cannot be replaced."""
    folder = tmp_path / "there" / "run"
    if is_there:
        folder.mkdir(parents=True)
        before = folder.stat().st_ino
    with pytest.raises(RuntimeError), files.atomic_folder(folder, "--to") as part:
        (part / "half").write_text("x")
        raise RuntimeError
    assert folder.exists() == is_there
    left = folder / files.PARTIAL if is_there else folder.with_name(f".run{files.PARTIAL}")
    (left / "killed").mkdir(parents=True)  # as a killed process leaves it
    (left / "killed" / "file").write_text("x")
    with files.atomic_folder(folder, "--to") as part:
        (part / "file").write_text("whole")
        assert not (folder / "file").exists()
        busy = f"--to: another process is writing {folder}; wait for it"
        assert_refused({busy: files.atomic_folder(folder, "--to").__enter__})
    assert os.listdir(folder) == ["file"] and os.listdir(folder.parent) == ["run"]
    assert not is_there or folder.stat().st_ino == before
    full = f"--to: {folder} is not empty; choose a new or an empty folder as --to"
    assert_refused({full: files.atomic_folder(folder, "--to").__enter__})


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    below_file = files.atomic_folder(tmp_path / "file/run", "--to")
    assert_refused({"file/run cannot be": below_file.__enter__})
    words = "run cannot be written: No space left on device"
    with pytest.raises(UserError, match=words), files.atomic_folder(tmp_path / "run", "--to"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_links_within_a_published_model_and_the_hubs_cache(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/1", tmp_path / "models--a--b/blobs"
    for folder in (snapshot / "1_Pooling", blobs, tmp_path / "outside"):
        folder.mkdir(parents=True)
    (blobs / "f").write_text("x")
    (tmp_path / "outside/f").write_text("secret")
    links = {
        snapshot / "good": "../../blobs/f",
        snapshot / "beside": "good",
        snapshot / "1_Pooling/f": "../../../blobs/f",
        snapshot / "bad": tmp_path / "outside/f",
        snapshot / "2_Pooling": tmp_path / "outside",
        tmp_path / "link": snapshot,
    }
    for path, target in links.items():
        path.symlink_to(target)
    for path in (snapshot / "good", snapshot / "beside", tmp_path / "link/good"):
        assert files.path_of_published(path) == blobs / "f"
    assert files.path_of_published(snapshot / "1_Pooling/f", snapshot) == blobs / "f"
    for path in (snapshot / "bad", snapshot / "2_Pooling/f"):
        with pytest.raises(OSError, match="it is a link that leads out of its folder"):
            files.path_of_published(path, snapshot)


CONTENT = bytes(range(250)) * 10
DAMAGE = FILE_DAMAGE | {
    "missing": lambda path: path.unlink(),
    "other bytes": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "a longer file": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "of another key": lambda path: write_made(path, "another", lambda file: file.write(b"other")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nothing")),
}


@pytest.fixture
def make():
    """Mock that writes `CONTENT`."""
    return Mock(side_effect=lambda file: file.write(CONTENT))


def test_content_is_made_once_for_each_key(tmp_path, make):
    path = tmp_path / "below" / "file"
    assert read_made(path, "key") is None
    first = remake(path, "key", make)
    assert first == remake(path, "key", make) == CONTENT and first.readonly
    assert make.call_count == 1
    assert read_made(path, "another key") is None
    remake(path, "another key", make)
    assert make.call_count == 2
    assert read_made(path, "key") is None
    assert first == CONTENT  # mapped, of a file that another has replaced
    assert os.listdir(path.parent) == ["file"]


def test_whatever_is_in_place_of_a_file_it_is_made_again(tmp_path, make):
    wrong = {}
    for name, damage in DAMAGE.items():
        path = tmp_path / name
        remake(path, "key", make)
        damage(path)
        if read_made(path, "key") is not None:
            wrong[name] = "is read"
        make.reset_mock()
        assert remake(path, "key", make) == CONTENT
        if make.call_count != 1 or not path.is_file() or path.is_symlink():
            wrong[name] = "is not replaced"
    assert not wrong


def test_an_error_leaves_the_former_file(tmp_path, make):
    path = tmp_path / "file"
    remake(path, "key", make)
    with pytest.raises(ZeroDivisionError):
        write_made(path, "another key", lambda file: 1 / 0)
    assert read_made(path, "key") == CONTENT and os.listdir(tmp_path) == ["file"]
    with pytest.raises(OSError):
        remake(path / "below", "key", make)  # in a file
