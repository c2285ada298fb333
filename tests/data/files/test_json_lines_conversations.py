"""Files of conversations, and lines that are none."""

import gzip
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.json_lines import read_answers, read_conversations
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError

ROWS = [
    {"instruction": "Add.", "input": "1 2", "output": "3"},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "ä"}]},
]
WANTED = [["Add.", "1 2", "3"], ["a", "b"], ["c", "ä"]]


def write(path, rows):
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def said(corpus):
    return [
        [turn.content for turn in conversation_from_json(example["turns"])] for example in corpus
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_form_is_read(tmp_path, name):
    corpus = read_conversations(write(tmp_path / name, ROWS), "valid")
    assert said(corpus) == WANTED
    assert corpus[0]["text"] == "Add.\n1 2\n3"


def test_parquet_is_read(tmp_path):
    path = str(tmp_path / "a.parquet")
    for row, wanted in zip(ROWS, WANTED, strict=True):
        pq.write_table(pa.Table.from_pylist([row, row]), path)
        assert said(read_conversations(path, "valid")) == [wanted] * 2
    pq.write_table(pa.Table.from_pylist([{"prompt": "a"}]), path)
    with pytest.raises(UserError, match=r"a.parquet, line 1: write {\"instruction\": text"):
        read_conversations(path, "valid")
    (tmp_path / "a.parquet").write_bytes(b"none")
    with pytest.raises(UserError, match="cannot read .*a.parquet as Parquet"):
        read_conversations(path, "valid")


def test_each_answer_has_a_source(tmp_path):
    turns = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    several = {"messages": [{"role": role, "content": said} for role, said in turns]}
    corpus = read_answers(write(tmp_path / "a.jsonl", [ROWS[0], several]), "valid")
    assert list(corpus) == [
        {"source": "Add.\n\n1 2", "target": "3"},
        {"source": "System: s\n\nUser: a", "target": "b"},
        {"source": "System: s\n\nUser: a\n\nAssistant: b\n\nUser: c", "target": "d"},
    ]


def test_training_loses_empty_answers(tmp_path, caplog):
    path = write(tmp_path / "a.jsonl", [*ROWS, {"instruction": "a", "output": " "}])
    with caplog.at_level(logging.WARNING):
        assert said(read_conversations(path, "train")) == WANTED
    why = "which teach nothing (line 4: turn 2 is an empty answer)"
    assert caplog.messages == [f"left out 1 of 4 lines of {path}, {why}"]
    with pytest.raises(UserError, match="a.jsonl, line 4: turn 2 is an empty answer"):
        read_conversations(path, "valid")
    alone = write(tmp_path / "b.jsonl", [{"instruction": "a", "output": ""}])
    with pytest.raises(UserError, match="b.jsonl has no line to learn from"):
        read_conversations(alone, "train")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2: this is no JSON"),
        ("[" * 100_000, "line 2: this is no JSON"),
        ("", "line 2: this is no JSON"),
        ('{"instruction": "a"}', "line 2: the last turn is no answer"),
    ],
)
def test_the_first_bad_line_is_named(tmp_path, line, told):
    path = write(tmp_path / "a.jsonl", [ROWS[0], line])
    for split in ("train", "valid"):
        with pytest.raises(UserError, match=told):
            read_conversations(path, split)


def test_alpaca_has_splits_that_do_not_overlap(tmp_path):
    rows = [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(120)]
    write(tmp_path / "alpaca_data.jsonl.gz", rows)
    config = DataConfig(name="alpaca", dir=str(tmp_path))
    parts = {
        split: [one[0] for one in said(open_split(config, split))]
        for split in ("train", "valid", "test")
    }
    assert parts["valid"] == ["i0", "i50", "i100"] and parts["test"] == ["i1", "i51", "i101"]
    assert sorted(sum(parts.values(), [])) == sorted(row["instruction"] for row in rows)
    assert len(parts["train"]) == 114
