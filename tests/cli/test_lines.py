"""Examples as lines: escapes, and the ends of lines."""

import io
import logging
import time
from types import SimpleNamespace

import pytest

from transformer_jax.cli.lines import escape, read_batches, unescape


def read_all(data, most=512):
    return list(read_batches(io.BytesIO(data), most=most))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\nb", r"a\r\nb"),
        ("a\\b", r"a\\b"),
        ("a\\nb", r"a\\nb"),
        ("\\", r"\\"),
        ("a\u2028b\x0bc\x85", "a\u2028b\x0bc\x85"),
        ("", ""),
    ],
)
def test_escapes_go_both_ways(text, line):
    assert escape(text) == line
    assert unescape(line) == text


@pytest.mark.parametrize("line", [r"C:\temp", "ends in \\", r"\x41"])
def test_a_backslash_before_other_characters_is_kept(line):
    assert unescape(line) == line


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\x0bc\n", ["a\r", "b\x0bc"]),
        ("ä\u2028ö\n".encode(), ["ä\u2028ö"]),
    ],
)
def test_only_line_feeds_end_lines(data, lines):
    assert [line for batch in read_all(data) for line in batch] == lines


def test_batches_have_at_most_the_given_size():
    assert [len(batch) for batch in read_all(b"x\n" * 10, most=4)] == [4, 4, 2]


def test_a_line_longer_than_a_read_stays_whole():
    assert read_all(b"a" * 3_000_000 + b"\nb\n") == [["a" * 3_000_000, "b"]]


def test_a_line_of_many_blocks_is_read_in_linear_time():
    blocks = iter([b"a" * (1 << 12)] * 10_000 + [b"\nb", b"c\n", b""])
    began = time.monotonic()
    (first,), (second,) = read_batches(SimpleNamespace(read1=lambda size: next(blocks)), most=512)
    assert time.monotonic() - began < 5  # in quadratic time minutes
    assert (len(first), second) == (10_000 << 12, "bc")


def test_bytes_that_are_not_utf8_are_replaced_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="transformer_jax"):
        batches = read_all(b"fine\nalso\nM\xfcnchen\n", most=2)
    assert batches == [["fine", "also"], ["M\ufffdnchen"]]
    (message,) = caplog.messages
    assert message.startswith("line 3 of the input is not UTF-8 from byte 2 on")
