# SPDX-License-Identifier: Apache-2.0
"""Tables with columns: CSV, tab-separated, JSON lines, Parquet, and frames of pandas."""

import json
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest

import transformer_jax as tj
from tests.data.writing import write
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.table import stored_tables
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings

REVIEWS = [{"review": 'so, "good"\nit is', "stars": "5"}, {"review": "é; bad", "stars": "1"}]
CSV = 'review{0}stars\n"so, ""good""\nit is"{0}5\n\n"é; bad"{0}1\n'
NAMED = {"text_field": "review", "label_field": "stars"}


def read(path, split="train", **fields):
    return open_split(DataConfig(name="table", **{f"{split}_text": path}, **fields), split)


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("name", ["own.csv", "own.csv.gz", "own.txt"])
def test_columns_may_be_quoted_and_separated_in_several_ways(tmp_path, delimiter, name):
    if delimiter == "\t":
        name = name.replace("csv", "tsv")
        texts = ['so, "good" it is', "é; bad"]
        text = f"\ufeffreview\tstars\r\n{texts[0]}\t5\r\n{texts[1]}\t1"
    else:
        texts = [row["review"] for row in REVIEWS]
        text = f"\ufeff{CSV.format(delimiter)}"
    rows = read(write(tmp_path / name, text), **NAMED)
    expected = [{"text": texts[0], "label": "5"}, {"text": texts[1], "label": "1"}]
    assert list(rows) == expected
    assert list(pickle.loads(pickle.dumps(rows))) == expected  # as for worker processes


def test_quotes_between_tabs_are_text_and_told(tmp_path, caplog):
    """Pandas quotes a cell that has quotes, and other tools write TSV without any quoting."""
    frame = pd.DataFrame({"text": ['so "good"', "bad"], "label": ["1", "0"]})
    frame.to_csv(tmp_path / "own.tsv", sep="\t", index=False)
    assert read(str(tmp_path / "own.tsv"))[0]["text"] == '"so ""good"""'
    assert "own.tsv: its cells are written in quotes" in caplog.text
    caplog.clear()
    read(write(tmp_path / "plain.tsv", 'text\tlabel\n"so ""good"""\t1\n"It\t0\n'))
    assert not caplog.text


def test_all_kinds_of_tables_hold_the_same_examples(tmp_path):
    frame = pd.DataFrame(REVIEWS)
    lines = [json.dumps({**row, "stars": int(row["stars"])}) for row in REVIEWS]
    columns = {name: np.array([row[name] for row in REVIEWS]) for name in REVIEWS[0]}
    files = [
        write(tmp_path / "own.csv", CSV.format(",")),
        write(tmp_path / "own.jsonl", "\n".join(lines)),
        *(stored_tables({"train": table})["data.train_text"] for table in (frame, columns)),
    ]
    examples = [list(read(path, **NAMED)) for path in files]
    assert examples == [[{"text": row["review"], "label": row["stars"]} for row in REVIEWS]] * 4
    pairs = read(files[0], source_language="stars", target_language="review")
    assert pairs[1] == {"source": "1", "target": "é; bad"}


def test_columns_have_default_names_and_each_file_is_a_corpus(tmp_path):
    for n in (1, 2):
        write(tmp_path / f"{n}.tsv", f"id\ttext\tlabel\tpair\n0\ta\t{n}\tb\n1\t \tx\tc\n")
    rows = read(f"{tmp_path}/*.tsv")
    assert list(rows) == [{"text": "a", "pair": "b", "label": str(n)} for n in (1, 2)]  # " " is out
    assert len(read(f"{tmp_path}/*.tsv", "valid")) == 4  # and kept where models are scored


def test_a_frame_is_the_data_of_a_config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    frame = pd.DataFrame({"text": ["a", None, "c"], "label": [1, 2, 1]})
    config = tj.config("cola", {"data.max_length": 8}, data={"train": frame, "valid": frame[:1]})
    data = read_settings(config).data
    assert list(open_split(data, "train")) == [{"text": t, "label": "1"} for t in "ac"]
    assert len(open_split(data, "valid")) == 1
    assert tj.config("cola", data={"train": frame.copy()}).data.train_text == data.train_text
    unlabeled = tj.config("cola", data={"train": frame.assign(label=[1, None, 2])})
    with pytest.raises(tj.UserError, match=r"^data\['train'\], row 2: no label"):
        open_split(read_settings(unlabeled).data, "train")


def test_columns_of_objects_are_those_of_all_rows(tmp_path):
    rows = [{"id": 0}, {"text": "a", "label": 1}, {"text": "b", "label": 2, "pair": "c"}]
    lines = write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, rows)))
    array = write(tmp_path / "own.json", json.dumps(rows))
    for path in (lines, array):
        assert list(read(path, on_bad_row="skip")) == [{"text": "b", "pair": "c", "label": "2"}]


def test_what_is_no_table_is_refused(tmp_path):
    def of(text, name="own.csv", **fields):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        path.mkdir()
        return lambda: read(write(path / name, text), **fields)

    good = "text,label\na,b\n"
    assert_refused(
        {
            "no column 'txt' (data.text_field); its columns are 'text', 'label'; did you mean "
            "text?": of(good, text_field="txt"),
            "no column 'class' (data.label_field)": of(good, label_field="class"),
            "no column 'text' (data.text_field); its columns are 'text^label'": of("text^label\n"),
            "own.csv, line 3: no label in the column 'label'": of(f"{good}c, \n"),
            "own.csv, line 4: 1 columns; expected 2: 'text', 'label'": of(f"{good}\nc\n"),
            "own.csv, line 2: 3 columns; expected 2": of("text,label\na,b,c\n"),
            "own.csv, line 3: unexpected end of data": of(f'{good}"c,d\n'),
            "two columns have the same name: text, text": of("text,text\na,b\n"),
            "own.csv has no line to learn from": of("text,label\n"),
            "own.csv has no columns: all its lines are blank": of("\n\n"),
            "line 1: the column 'label' is 0.5; a label is": of(
                '{"text": "a", "label": 0.5}', "own.jsonl"
            ),
            "line 2: no label in the column 'label' (columns: text); set": of(
                '{"text": "a", "label": 1}\n{"text": "b"}', "own.jsonl"
            ),
            "line 1: no label in the column 'label' (columns: text); set": of(
                '{"text": "a"}\n{"text": "b", "label": 1}', "own.jsonl"
            ),
            "data: give a table for each split": partial(stored_tables, pd.DataFrame(REVIEWS)),
            "the columns of 'train' have no names": partial(stored_tables, {"train": ("a", "b")}),
            "'train' is no table": partial(stored_tables, {"train": 3}),
            "no split 'trian'; they are train, valid": partial(stored_tables, {"trian": []}),
        }
    )
    bad = of(f"{good}c\nd,e\n", on_bad_row="skip")
    assert [row["text"] for row in bad()] == ["a", "d"]
