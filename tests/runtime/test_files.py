"""Files are replaced whole, links are not followed, and nothing is read without end."""

import os
import socket

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runtime.files import (
    everything_below,
    is_safe_name,
    open_to_append,
    path_below,
    read_regular,
    remove,
    replacing,
    write_whole,
)


def test_a_file_is_replaced_once_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as file:
        file.write("neü".encode())
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "neü"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_file_is_as_it_was(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path):
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["file", "file.partial"])
def test_a_link_is_replaced_and_what_it_names_kept(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    write_whole(tmp_path / "file", "new")
    assert precious.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()


def test_what_is_appended_to_is_no_link(tmp_path):
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
def test_what_is_no_regular_file_is_neither_read_nor_appended_to(tmp_path, monkeypatch, become):
    (tmp_path / "precious").write_text("mine")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = tmp_path / "file"
    become(path.relative_to(tmp_path), tmp_path)
    with pytest.raises(OSError, match=str(path)):
        read_regular(path, 100)
    with pytest.raises(OSError, match=str(path)):
        open_to_append(path)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_no_more_is_read_than_asked_for(tmp_path):
    path = tmp_path / "file"
    path.write_text("12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, and a run writes fewer: .*file"):
        read_regular(path, 4)


def test_what_has_a_second_name_is_not_appended_to(tmp_path):
    (tmp_path / "precious").write_text("mine")
    os.link(tmp_path / "precious", tmp_path / "file")
    with pytest.raises(OSError, match="second name"):
        open_to_append(tmp_path / "file")
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "precious").read_text() == "mine"


def test_everything_below_a_folder_but_not_behind_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (tmp_path / "run" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "file").touch()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    found = {
        os.path.relpath(entry.path, tmp_path / "run")
        for entry in everything_below(tmp_path / "run")
    }
    assert found == {"deep", "deep/er", "deep/file", "link"}
    assert list(everything_below(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("become", [link, pipe, folder])
def test_what_is_removed_is_not_followed(tmp_path, become):
    (tmp_path / "precious").write_text("mine")
    become(tmp_path / "file", tmp_path)
    remove(tmp_path / "file")
    remove(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


ODD_NAMES = ["", "/abs", "x//abs", "x/", ".", "..", "./x", "x/./y", "../x", "x/../../y"]
ODD_NAMES += ["C:x", "c:/x", "x\\y", "..\\x", "x\0y"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_leads_elsewhere_is_no_path_below_a_folder(tmp_path, name):
    assert not is_safe_name(name)
    with pytest.raises(UserError, match="is not the name of a file below") as told:
        path_below(tmp_path, name)
    assert repr(name) in str(told.value)


@pytest.mark.parametrize("name", ["a", "a/b", "..a", "a..", ".hidden/b", "a b", "ab:c", "ü/\n"])
def test_any_other_name_is_a_path_below_a_folder(tmp_path, name):
    assert is_safe_name(name) and path_below(tmp_path, name) == tmp_path / name


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for one in (folder / "real", elsewhere):
        one.mkdir(parents=True)
    (folder / "out").symlink_to(elsewhere)
    (folder / "in").symlink_to("real")
    (folder / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(folder)
    for name in ("out", "out/x", "loop/x"):
        with pytest.raises(UserError, match="leads out of|cannot be used"):
            path_below(folder, name)
    assert path_below(folder, "in/x") == folder / "in/x"
    assert path_below(tmp_path / "link", "real/x") == tmp_path / "link/real/x"  # itself a link
