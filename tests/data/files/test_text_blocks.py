# SPDX-License-Identifier: Apache-2.0
"""Text in blocks: each document is in exactly one block, in local and remote files."""

import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.writing import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.text import open_blocks

LINES = [f"line {i} " + "ü" * (i * 7 % 30) for i in range(60)]


def blocks_of(*paths, megabytes=1e-4, **fields):
    config = DataConfig(block_megabytes=megabytes, documents="line", **fields)
    return open_blocks(config, [str(path) for path in paths])


def documents_of(blocks):
    return [text for i in range(len(blocks)) for text in blocks.documents(i)]


@pytest.mark.parametrize("megabytes", [1e-4, 2.3e-4, 1e-3, 1])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_each_line_is_in_exactly_one_block(tmp_path, megabytes, end, last):
    text = end.join(LINES) + (end if last else "")
    (tmp_path / "text.txt").write_bytes(text.encode())
    blocks = blocks_of(tmp_path / "text.txt", megabytes=megabytes)
    assert documents_of(blocks) == LINES
    assert len(blocks) == -(-len(text.encode()) // int(megabytes * 2**20))
    assert blocks[0]["text"].startswith("line 0 \nline 1")


def test_documents_are_non_blank_lines_or_whole_files(tmp_path):
    (tmp_path / "text.txt").write_text("\ufeffa\n\n  \nb\n", encoding="utf-8")
    assert documents_of(blocks_of(tmp_path / "text.txt", megabytes=1)) == ["a", "b"]
    config = DataConfig(block_megabytes=1e-4, documents="file")
    assert open_blocks(config, [str(tmp_path / "text.txt")]).documents(0) == ["a\n\n  \nb"]


def test_compressed_files_and_tables_are_read(tmp_path):
    rows = [json.dumps({"text": line, "id": i}) + "\n" for i, line in enumerate(LINES)]
    (tmp_path / "a.jsonl").write_text("".join(rows[:20]))
    write(tmp_path / "b.json.gz", "".join(rows[20:40]))
    with pa.CompressedOutputStream(str(tmp_path / "c.jsonl.zst"), "zstd") as file:
        file.write("".join(rows[40:]).encode())
    table = pa.table({"id": range(60), "text": LINES})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    blocks = blocks_of(tmp_path / "*.json*", tmp_path / "a.jsonl")
    assert documents_of(blocks) == LINES
    assert len([block for block in blocks.blocks if block.path.endswith(".jsonl")]) > 5
    in_groups = blocks_of(tmp_path / "d.parquet")
    assert documents_of(in_groups) == LINES
    assert len(in_groups) > 3


def test_remote_files_are_read_without_a_copy():
    system = fsspec.filesystem("memory")
    system.pipe_file("/shards/0.txt", "\n".join(LINES[:30]).encode())
    system.pipe_file("/shards/1.txt", "\n".join(LINES[30:]).encode())
    blocks = blocks_of("memory://shards/*.txt")
    assert documents_of(blocks) == LINES


def test_a_local_file_name_is_not_an_address(tmp_path, monkeypatch):
    (tmp_path / "a::b.txt").write_text("\n".join(LINES))
    monkeypatch.chdir(tmp_path)
    for path in ("a::b.txt", "*::b.txt"):
        assert documents_of(blocks_of(path)) == LINES


def test_a_sample_is_evenly_spaced(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i:09}\n" for i in range(10_000)))
    blocks = blocks_of(tmp_path / "text.txt", megabytes=1000 / 2**20)
    sampled = documents_of(blocks.sample(10_000))
    assert len(blocks) == 100 and len(sampled) == 1000
    assert sampled[0] == f"{0:09}" and sampled[-1] == f"{9999:09}"
    assert documents_of(blocks.sample(10**9)) == documents_of(blocks)
    rows = pa.table({"text": [f"{i:09}" for i in range(10_000)]})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    in_groups = blocks_of(tmp_path / "rows.parquet")
    num_bytes = sum(block.num_bytes for block in in_groups.blocks)
    assert len(documents_of(in_groups.sample(num_bytes // 10))) == 1000
