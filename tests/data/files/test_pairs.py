# SPDX-License-Identifier: Apache-2.0
"""Source-target pairs of aligned files, tab-separated lines and JSON lines."""

import gzip
import json

import pytest

from transformer_jax.data.files.pairs import drop_blank, read_aligned, read_json_lines, read_tsv
from transformer_jax.errors import UserError


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_pairs_are_aligned(tmp_path):
    source = write(tmp_path / "en", b"one\ntwo\nthree\n")
    target = write(tmp_path / "de.gz", gzip.compress(b"eins\nzwei\ndrei\n"))
    pairs = read_aligned(source, target)
    assert list(pairs) == [
        {"source": "one", "target": "eins"},
        {"source": "two", "target": "zwei"},
        {"source": "three", "target": "drei"},
    ]


def test_files_of_unequal_lengths_are_named_with_their_lengths(tmp_path):
    source = write(tmp_path / "en", b"one\ntwo\nthree\n")
    target = write(tmp_path / "de", b"eins\nzwei\n")
    with pytest.raises(UserError, match=f"^{source} has 3 lines but {target} has 2: "):
        read_aligned(source, target)


def test_blank_pairs_are_dropped(tmp_path, caplog):
    source = write(tmp_path / "en", b"one\n\nthree\n \nfive\n")
    target = write(tmp_path / "de", b"eins\nzwei\n\t\n\nf\xc3\xbcnf\n")

    whole = read_aligned(source, target)
    kept = drop_blank(whole, "train", "en and de")
    assert list(kept) == [
        {"source": "one", "target": "eins"},
        {"source": "five", "target": "fünf"},
    ]
    assert "left out 3 of 5 pairs of en and de" in caplog.text
    assert len(whole) == 5
    assert whole[1] == {"source": "", "target": "zwei"}
    assert whole[3] == {"source": " ", "target": ""}
    assert drop_blank(kept, "train", "en and de") is kept


def test_files_with_blank_pairs_only_are_an_error(tmp_path):
    source, target = write(tmp_path / "en", b"one\n\n"), write(tmp_path / "de", b"\nzwei\n")
    with pytest.raises(UserError, match="no line has text on both sides in en and de"):
        drop_blank(read_aligned(source, target), "train", "en and de")


def test_tab_separated_pairs_are_read(tmp_path):
    path = write(tmp_path / "pairs.tsv.gz", gzip.compress(b"a b\tc\n\td\r\n"))
    assert list(read_tsv(path)) == [
        {"source": "a b", "target": "c"},
        {"source": "", "target": "d"},
    ]


@pytest.mark.parametrize("line, columns", [(b"one", 1), (b"a\tb\tc", 3), (b"", 1)])
def test_a_wrong_number_of_columns_names_file_and_line(tmp_path, line, columns):
    path = write(tmp_path / "pairs.tsv", b"a\tb\n" + line + b"\nc\td\n")
    with pytest.raises(UserError, match=f"^{path}, line 2: {columns} columns; write source<tab>"):
        read_tsv(path)


def test_json_pairs_are_read(tmp_path):
    pairs = [{"source": "a\tb\nc", "target": "é"}, {"source": "", "target": "d"}]
    lines = [json.dumps({**pair, "id": 1}) for pair in pairs]
    path = write(tmp_path / "pairs.jsonl", "\n".join(lines).encode())
    assert list(read_json_lines(path)) == pairs


@pytest.mark.parametrize(
    "line", [b"[]", b"{", b'{"source": "a"}', b'{"source": "a", "target": 1}', b"[" * 10**5]
)
def test_an_invalid_json_line_is_named(tmp_path, line):
    path = write(tmp_path / "pairs.jsonl", b'{"source": "a", "target": "b"}\n' + line + b"\n")
    with pytest.raises(
        UserError,
        match=f'^{path}, line 2: (this is no JSON|write {{"source": text|"target" is 1, not)',
    ):
        read_json_lines(path)
