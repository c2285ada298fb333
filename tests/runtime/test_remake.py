# SPDX-License-Identifier: Apache-2.0
"""Files that can be made again: whatever is in their place, the content is right."""

import os
from unittest.mock import Mock

import pytest

from tests.conftest import FILE_DAMAGE
from transformer_jax.runtime.remake import read_made, remake, write_made

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
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_whatever_is_in_place_of_a_file_it_is_made_again(tmp_path, make):
    wrong = {}
    for number, (name, damage) in enumerate(DAMAGE.items()):
        path = tmp_path / str(number)
        remake(path, "key", make)
        damage(path)
        if read_made(path, "key") is not None:
            wrong[name] = "is read"
        make.reset_mock()
        assert remake(path, "key", make) == CONTENT
        if make.call_count != 1 or not path.is_file() or path.is_symlink():
            wrong[name] = "is not replaced"
    assert not wrong


def test_no_flipped_bit_is_read(tmp_path):
    path = tmp_path / "file"
    write_made(path, "key", lambda file: file.write(b"content"))
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        assert read_made(path, "key") is None, i
    path.write_bytes(whole)
    assert read_made(path, "key") == b"content"


def test_an_error_leaves_the_former_file(tmp_path, make):
    path = tmp_path / "file"
    remake(path, "key", make)
    with pytest.raises(ZeroDivisionError):
        write_made(path, "another key", lambda file: 1 / 0)
    assert read_made(path, "key") == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError):
        remake(path / "below", "key", make)  # in a file
