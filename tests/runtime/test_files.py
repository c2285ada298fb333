"""Files are replaced whole, and links are not followed."""

import pytest

from transformer_jax.runtime.files import open_to_append, replacing, write_whole


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
