# SPDX-License-Identifier: Apache-2.0
"""Rows of files: JSON lines and arrays, what is left out, and what is an error."""

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.json_lines import read_choices, read_conversations, read_preferences
from transformer_jax.data.files.pairs import read_json_lines
from transformer_jax.data.files.rows import open_rows
from transformer_jax.data.files.text import open_blocks, read_documents
from transformer_jax.errors import UserError

ROWS = [{"source": f'a "{i}" [\\', "target": "b\n]{é", "meta": {"n": [1, {}]}} for i in range(9)]
PAIRS = [{"source": row["source"], "target": row["target"]} for row in ROWS]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("begin", ["", "\ufeff", "\n \n"])
def test_a_json_array_has_a_row_per_object(tmp_path, indent, begin):
    for ascii in (True, False):
        text = json.dumps(ROWS, indent=indent, ensure_ascii=ascii)
        found = read_json_lines(write(tmp_path / "a.json", f"{begin}{text}\n"))
        assert list(found) == PAIRS


def test_blank_lines_are_no_rows_and_byte_order_marks_are_dropped(tmp_path):
    lines = [json.dumps(row) for row in ROWS]
    text = "\n\n" + "\n".join(f"\ufeff{line}\n  " for line in lines)
    assert list(read_json_lines(write(tmp_path / "a.jsonl", text))) == PAIRS
    documents = write(tmp_path / "b.jsonl", '\n\ufeff{"text": "a"}\n \n\ufeff{"text": "b"}\n')
    assert [example["text"] for example in read_documents(documents, "line")] == ["a", "b"]
    config = DataConfig(block_megabytes=1.0)
    assert open_blocks(config, [documents]).documents(0) == ["a", "b"]
    with pytest.raises(UserError, match="line 3: this is no JSON"):
        read_json_lines(write(tmp_path / "c.jsonl", f"\n{lines[0]}\n{{"))


GOOD = {"instruction": "a", "output": "b"}
PREFERENCE = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (read_conversations, GOOD, "{"),
        (read_conversations, GOOD, json.dumps({**GOOD, "tools": ["f"]})),
        (read_conversations, GOOD, '{"instruction": "a", "output": "b", "output": "c"}'),
        (read_conversations, GOOD, json.dumps({**GOOD, "history": 3})),
        (read_preferences, PREFERENCE, json.dumps({**PREFERENCE, "prompt": [3]})),
        (read_choices, {"context": "a", "choices": ["b", "c"], "answer": 0}, '{"context": 1}'),
        (read_json_lines, {"source": "a", "target": "b"}, '{"source": "a", "weight": 2}'),
        (
            lambda path, split, skip: read_documents(path, "line", None, skip),
            {"text": "a"},
            '{"text": ["a"]}',
        ),
    ],
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_bad_row_stops_or_is_skipped_and_counted(tmp_path, caplog, read, good, bad, split):
    path = write(tmp_path / "a.jsonl", f"{json.dumps(good)}\n{bad}\n{json.dumps(good)}\n{bad}\n")
    with pytest.raises(UserError, match="a.jsonl, line 2: "):
        read(path, split, "stop")
    assert len(read(path, split, "skip")) == 2
    (message,) = caplog.messages
    assert f"left out 2 of 4 rows of {path}: not as the set demands" in message
    assert "the first: line 2: " in message


NO_TEXT = [None, "", " \t"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_documents_without_text_are_left_out_of_files_and_blocks(tmp_path, kind, caplog):
    texts, path = ["a", *NO_TEXT, "b"], tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        write(path, "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    found = read_documents(str(path), "line")
    assert [example["text"] for example in found] == ["a", "b"]
    blocks = open_blocks(DataConfig(block_megabytes=1.0), [str(path)])
    for _ in range(2):
        assert blocks.documents(0) == ["a", "b"]
    told = f"left out 3 of 5 rows of {path}: no text (the first: "
    assert len(caplog.messages) == 2 and all(told in message for message in caplog.messages)


def test_lists_in_place_of_text_are_an_error_or_skipped(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [["a", "b"], ["c"]]}), path)
    message = "the column 'text' is .*, not text"
    with pytest.raises(UserError, match=f"row 1: {message}"):
        read_documents(path, "line")
    with pytest.raises(UserError, match=message):
        open_blocks(DataConfig(block_megabytes=1.0), [path]).documents(0)
    skipping = DataConfig(block_megabytes=1.0, on_bad_row="skip")
    assert open_blocks(skipping, [path]).documents(0) == []


def test_pairs_without_text_are_left_out_of_training_only(tmp_path, caplog):
    rows = [{"source": "a", "target": text} for text in ["b", *NO_TEXT]]
    path = write(tmp_path / "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    caplog.set_level(logging.WARNING)
    assert len(read_json_lines(path, "train")) == 1
    assert "left out 3 of 4 rows" in caplog.text
    assert [pair["target"] for pair in read_json_lines(path, "valid")] == ["b", "", "", " \t"]


def test_rows_of_parquet_are_read_in_batches_or_one_by_one(tmp_path):
    pq.write_table(pa.table({"n": range(2500), "m": [None] * 2500}), tmp_path / "a.parquet")
    items = open_rows(str(tmp_path / "a.parquet")).items
    assert [row["n"] for row in items] == [*range(2500)]
    assert items[1234] == {"n": 1234, "m": None}
