# SPDX-License-Identifier: Apache-2.0
"""Documents of text files and tables."""

import json
import os

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.writing import write
from transformer_jax.data.config import DOCUMENTS, DataConfig
from transformer_jax.data.files.text import WholeFiles, read_documents
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError

TEXT = "\n One.\nTwo.\n\n \nThree é.\n\n"


def texts(path, documents) -> list[str]:
    return [example["text"] for example in read_documents(path, documents)]


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_document_is_a_file_a_line_or_a_paragraph(tmp_path, name, start, line_end):
    path = write(tmp_path / name, start + TEXT.replace("\n", line_end).encode())
    assert texts(path, "file") == [TEXT]
    assert texts(path, "line") == [" One.", "Two.", "Three é."]
    assert texts(path, "paragraph") == [" One.\nTwo.", "Three é."]


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_the_last_line_needs_no_end(tmp_path, documents):
    assert texts(write(tmp_path / "text", b"One."), documents) == ["One."]


def test_many_files_are_not_kept_open(tmp_path):
    for n in range(20):
        write(tmp_path / f"{n}.txt", b"Some text.\n")
    open_before = len(os.listdir("/proc/self/fd"))
    files = WholeFiles(tuple(str(path) for path in sorted(tmp_path.iterdir())))
    assert len(files) == 20 and files[-1] == {"text": "Some text.\n"}
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_each_file_is_a_corpus(tmp_path):
    for n in range(3):
        write(tmp_path / f"{n}.txt", f"{n}\n\n{n}{n}\n".encode())
    config = DataConfig(name="text", train_text=f"{tmp_path}/*.txt", weights="1,2,3")
    train = open_split(config, "train")
    assert [example["text"] for example in train] == [f"{n}\n\n{n}{n}\n" for n in range(3)]
    assert train.weights == (1, 2, 3)
    config = DataConfig(name="text", documents="line", train_text=f"{tmp_path}/*.txt")
    train = open_split(config, "train")
    assert [example["text"] for example in train] == ["0", "00", "1", "11", "2", "22"]


ROWS = [{"body": "One.\nTwo.", "id": 1}, {"body": "Drei é.", "id": 2}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write_table(folder, ending):
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif ending == ".jsonl.zst":
        path.write_bytes(pa.compress(LINES, "zstd", asbytes=True))
    elif ending == ".csv":
        pd.DataFrame(ROWS).to_csv(path, index=False)
    else:
        write(path, LINES)
    return str(path)


@pytest.mark.parametrize("ending", [".jsonl", ".json.gz", ".jsonl.zst", ".parquet", ".csv"])
def test_a_document_is_a_column_of_a_row(tmp_path, ending):
    path = write_table(tmp_path, ending)
    config = DataConfig(name="text", train_text=path, text_field="body")
    assert list(open_split(config, "train")) == [{"text": row["body"]} for row in ROWS]
    message = r"rows.*, (line|row) [12]: no text in the column 'text' \(columns: body, id\); set"
    with pytest.raises(UserError, match=message):
        open_split(DataConfig(name="text", train_text=path), "train")
    if ending != ".csv":  # all its cells are text
        with pytest.raises(UserError, match="(line|row) 1: the column 'id' is 1, not text"):
            open_split(DataConfig(name="text", train_text=path, text_field="id"), "train")
