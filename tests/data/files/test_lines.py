# SPDX-License-Identifier: Apache-2.0
"""Lines of text files, plain and compressed, and lists of paths."""

import errno
import gzip
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files import lines as lines_module
from transformer_jax.data.files.lines import TextLines, expand_paths, open_files, paragraphs
from transformer_jax.errors import UserError


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"\n", [""]),
        (b"a\r\nb\r\r\n", ["a", "b\r"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        (
            "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\n".encode(),
            ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"],
        ),
    ],
)
def test_lines_end_at_newline_alone(tmp_path, data, lines):
    assert list(TextLines(write(tmp_path / "text", data))) == lines


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("data", [b"a\nb\n", b"a\nb", b"a\r\n\r\nb\r\r\nc\r", b"\n", b"a\rb\r\n"])
def test_text_joins_the_lines_with_their_ends(tmp_path, start, data):
    lines = TextLines(write(tmp_path / "text", start + data))
    end = "\n" if data.endswith(b"\n") else ""
    assert lines.text() == "\n".join(lines) + end
    for stop in range(1, len(lines)):
        assert lines.text(stop - 1, stop) == f"{lines[stop - 1]}\n"
        assert lines.text(stop) == "\n".join(list(lines)[stop:]) + end


@pytest.mark.parametrize(
    "lines, ranges",
    [
        (["a"], [[0, 1]]),
        (["", "a", "b", " ", "\t", "c", ""], [[1, 3], [5, 6]]),
        (["a", "", "b"], [[0, 1], [2, 3]]),
        (["", " "], []),
    ],
)
def test_paragraphs_are_separated_by_blank_lines(tmp_path, lines, ranges):
    path = write(tmp_path / "text", "".join(f"{line}\n" for line in lines).encode())
    assert paragraphs(TextLines(path)).tolist() == ranges


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "a", "\u3000"])
def test_a_blank_line_has_only_white_space(tmp_path, end):
    spaces = [chr(i) for i in range(sys.maxunicode + 1) if chr(i).isspace() and chr(i) != "\n"]
    seen = ["a", "\x01", "\x7f", "ü", "語", "\u200b", "\ufeff", "\u3001", "\U0001f600"]
    lines = [*seen, "", *spaces, "".join(spaces), *("".join(spaces) + one for one in seen), ""]
    for start in ("", "\ufeff"):
        content = start + "\n".join(lines) + end
        found = TextLines(write(tmp_path / "text", content.encode()))
        assert found.blank_mask().tolist() == [not line.strip() for line in found]
        assert 25 < sum(found.blank_mask()) < len(found)
    assert TextLines(write(tmp_path / "text", b"\xef\xbb\xbf")).blank_mask().tolist() == [True]


def test_a_full_disk_while_unpacking_is_a_user_error(tmp_path, monkeypatch):
    path = write(tmp_path / "text.gz", "some text\n")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(lines_module.shutil, "copyfileobj", Mock(side_effect=full))
    with pytest.raises(UserError, match=f"no room to unpack {path} in .*set TMPDIR"):
        TextLines(path)


def test_lines_do_not_depend_on_the_size_of_chunks(tmp_path, monkeypatch):
    text = ["é" * n for n in range(40)]
    path = write(tmp_path / "text", "".join(f"{line}\n" for line in text).encode())
    for chunk in (1, 7, 64):
        monkeypatch.setattr(lines_module, "_CHUNK_BYTES", chunk)
        assert list(TextLines(path)) == text
    broken = write(tmp_path / "broken", Path(path).read_bytes()[:-2] + b"\n")
    with pytest.raises(UserError, match="line 40: not UTF-8"):
        TextLines(broken)


def test_a_file_larger_than_the_memory_allowed_is_read(tmp_path, monkeypatch):
    """Reads 8 MiB of text with less than 2 MiB of memory; `tracemalloc` counts no memory maps."""
    monkeypatch.setattr(lines_module, "_CHUNK_BYTES", 1 << 18)
    path = write(tmp_path / "large", (b"x" * 1023 + b"\n") * 2**13)
    tracemalloc.start()
    try:
        lines = TextLines(path)
        assert len(lines) == 2**13 and lines[2**12] == "x" * 1023
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


@pytest.fixture
def folder(tmp_path):
    for name in ("b.en", "a.en", "c.txt"):
        write(tmp_path / name, b"x\n")
    return tmp_path


def test_paths_are_listed_matched_and_sorted(folder, monkeypatch):
    def names(paths):
        return [Path(path).name for path in expand_paths(paths, "data.train_source")]

    assert names(f"{folder}/c.txt,{folder}/*.en") == ["c.txt", "a.en", "b.en"]
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/a.en,") == ["a.en"]
    assert names("/no/such/file") == ["file"]  # opening it says what is wrong
    assert len(names(",".join(["no_such_file"] * 50))) == 50
    config = DataConfig(train_text=f"{folder}/c.txt,{folder}/*")
    assert [Path(path).name for path in open_files(config, "train", read=str)] == [
        *("c.txt", "a.en", "b.en")
    ]


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_a_pipe_can_be_read_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    data = gzip.compress(b"a\nb\n") if name.endswith(".gz") else b"a\nb\n"
    writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(data,))
    writer.start()
    assert list(TextLines(str(tmp_path / name), once=True)) == ["a", "b"]
    writer.join()


def test_a_path_is_a_path_before_it_is_a_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train[1].txt", "train1.txt", "a,b.txt", "a"):
        Path(name).touch()
    assert expand_paths("train[1].txt", "data.train_text") == ["train[1].txt"]
    assert expand_paths("train[1].txt,a", "data.train_text") == ["train[1].txt", "a"]
    assert expand_paths("train[1-3].txt", "data.train_text") == ["train1.txt"]
    assert expand_paths("a,b.txt", "data.train_text") == ["a,b.txt"]
