import gzip
import pickle

import pytest

from transformer_jax.data.text_files import LinePairs, read_lines, read_pairs
from transformer_jax.errors import UserError


def write(path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


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
    assert read_lines(write(tmp_path / "text", data)) == lines


def test_gzip_reads_as_plain(tmp_path):
    path = write(tmp_path / "text.gz", gzip.compress("Grüße\nWelt\n".encode()))
    assert read_lines(path) == ["Grüße", "Welt"]


@pytest.mark.parametrize("name, data", [("text", b""), ("text.gz", gzip.compress(b""))])
def test_empty_file_is_an_error(tmp_path, name, data):
    path = write(tmp_path / name, data)
    with pytest.raises(UserError, match=f"^{path} is empty"):
        read_lines(path)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_names_file_and_line(tmp_path, prefix):
    path = write(tmp_path / "text", prefix + b"one\ntwo\nth\xffree\nfour\n")
    with pytest.raises(UserError, match=f"^{path}, line 3: not UTF-8"):
        read_lines(path)


def test_missing_file_and_folder_name_the_path(tmp_path):
    for path in (tmp_path / "absent", tmp_path / "absent.gz", tmp_path):
        with pytest.raises(UserError, match=f"^cannot read {path}: "):
            read_lines(str(path))


WHOLE_GZIP = gzip.compress(b"some text\n" * 100)


@pytest.mark.parametrize(
    "data",
    [
        b"plain text\n",
        WHOLE_GZIP[:-12],
        WHOLE_GZIP[:12] + b"\xff" * 8 + WHOLE_GZIP[20:],
        WHOLE_GZIP[:-8] + bytes(8),
    ],
    ids=["not gzip", "truncated", "corrupt", "wrong checksum"],
)
def test_broken_gzip_is_an_error(tmp_path, data):
    path = write(tmp_path / "text.gz", data)
    with pytest.raises(UserError, match=f"^{path} is not a whole gzip file"):
        read_lines(path)


def test_pairs_are_aligned(tmp_path):
    source = write(tmp_path / "en", b"one\ntwo\nthree\n")
    target = write(tmp_path / "de.gz", gzip.compress(b"eins\nzwei\ndrei\n"))
    pairs = read_pairs(source, target, drop_blank=True)
    assert list(pairs) == [
        {"source": "one", "target": "eins"},
        {"source": "two", "target": "zwei"},
        {"source": "three", "target": "drei"},
    ]


def test_unequal_lengths_name_both_files_and_counts(tmp_path):
    source = write(tmp_path / "en", b"one\ntwo\nthree\n")
    target = write(tmp_path / "de", b"eins\nzwei\n")
    with pytest.raises(UserError, match=f"^{source} has 3 lines but {target} has 2: "):
        read_pairs(source, target, drop_blank=True)


def test_blank_pairs_are_dropped_only_where_asked(tmp_path, caplog):
    source = write(tmp_path / "en", b"one\n\nthree\n \nfive\n")
    target = write(tmp_path / "de", b"eins\nzwei\n\t\n\nf\xc3\xbcnf\n")

    kept = read_pairs(source, target, drop_blank=True)
    assert list(kept) == [
        {"source": "one", "target": "eins"},
        {"source": "five", "target": "fünf"},
    ]
    assert f"left out 3 of 5 pairs of {source} and {target}" in caplog.text

    caplog.clear()
    whole = read_pairs(source, target, drop_blank=False)
    assert len(whole) == 5
    assert whole[1] == {"source": "", "target": "zwei"}
    assert whole[3] == {"source": " ", "target": ""}
    assert not caplog.records


def test_no_pair_left_is_an_error(tmp_path):
    source, target = write(tmp_path / "en", b"one\n\n"), write(tmp_path / "de", b"\nzwei\n")
    with pytest.raises(UserError, match=f"no line has text in both {source} and {target}"):
        read_pairs(source, target, drop_blank=True)


def test_line_pairs_are_a_picklable_sequence():
    pairs = LinePairs(["a", "b", "c"], ["x", "y", "z"])
    assert len(pairs) == 3
    assert pairs[-1] == {"source": "c", "target": "z"}
    assert list(pairs[1:]) == [{"source": "b", "target": "y"}, {"source": "c", "target": "z"}]
    assert list(pickle.loads(pickle.dumps(pairs))) == list(pairs)
    with pytest.raises(IndexError):
        pairs[3]
