# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be used: the message names the file and the first bad line or row."""

import gzip
import json
import os
from functools import partial

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.refusals import assert_refused
from transformer_jax.data.config import DOCUMENTS, DataConfig
from transformer_jax.data.files.json_lines import read_choices, read_conversations, read_preferences
from transformer_jax.data.files.lines import TextLines, expand_paths
from transformer_jax.data.files.pairs import drop_blank, read_aligned, read_json_lines, read_tsv
from transformer_jax.data.files.text import open_blocks, read_documents
from transformer_jax.data.files.trees import read_tagged_words
from transformer_jax.data.sources import open_split

GZIP = gzip.compress(b"some text\n" * 100)
ZSTD = pa.compress(b"some text\n" * 1000, "zstd", asbytes=True)
DEEP = "[" * 10**5
PAIR = '{"source": "a", "target": "b"}\n'
TALK = '{"instruction": "Add.", "output": "3"}\n'
INSTRUCTED = [{"role": "system", "content": "Be short."}]
ASKED = [{"role": "user", "content": "Hello?"}]
GOOD = [{"role": "assistant", "content": "good"}]
BAD = [{"role": "assistant", "content": "bad"}]
PREFERENCE = {"prompt": "Hello?", "chosen": "good", "rejected": "bad"}
CHOICE = {"context": "The dog", "choices": ["walks.", "is a cat."], "answer": 0}


def read_trees(path):
    return open_split(DataConfig(name="bracketed_trees", train_text=path), "train")


def read_valid(path):
    return read_conversations(path, "valid")


def after(good, line):
    return f"{good}{line}\n"


def preference(row=None, **changes):
    """A bad row after a good one."""
    bad = PREFERENCE | changes if row is None else row
    return f"{json.dumps(PREFERENCE)}\n{json.dumps(bad)}\n"


def choice(**changes):
    return f"{json.dumps(CHOICE)}\n{json.dumps(CHOICE | changes)}\n"


def tree(text):
    return f"(TOP (UH Oh))\n\n{text}\n"


READ = {
    TextLines: {
        b"": "{path} is empty",
        b"one\ntwo\nth\xffree\nfour\n": "{path}, line 3: not UTF-8",
    },
    read_tsv: {
        "a\tb\none\nc\td\n": "{path}, line 2: 1 columns; expected 2: 'source', 'target'",
        "a\tb\na\tb\tc\n": "{path}, line 2: 3 columns; expected 2: 'source', 'target'",
    },
    read_json_lines: {
        after(PAIR, "[]"): '{path}, line 2: write {"source": text',
        after(PAIR, "{"): "{path}, line 2: this is no JSON",
        after(PAIR, DEEP): "{path}, line 2: this is no JSON",
        after(PAIR, '{"source": "a"}'): '{path}, line 2: write {"source": text',
        after(PAIR, '{"source": "a", "target": 1}'): '{path}, line 2: "target" is 1, not',
        '[{"a": 1}, {"a": 2}': "{path} begins as a JSON array, but this is no JSON",
        '[{"a": 1, "a": 2}]': "an object has the same key twice",
        DEEP: "begins as a JSON array, but this is no JSON",
        '[{"source": "a", "target": "b"}, 3]': '{path}, row 2: write {"source"',
        json.dumps([json.loads(PAIR), {"source": 3, "target": "b"}]): 'row 2: "source" is 3, not',
        "[]": "has no row to learn from",
    },
    read_tagged_words: {
        "a\tDT\n\nword\n": "{path}, line 3: 1 columns; write word<tab>tag",
        "a\tNN\tB-NP\n": "{path}, line 1: 3 columns; write",
        "\tNN\n": "{path}, line 1: no word; write",
        "a\t\n": "{path}, line 1: no tag; write",
        "New York\tNNP\n": "{path}, line 1: a space within",
        "a\tNN NNS\n": "{path}, line 1: a space within",
        "\n\n": "{path} has no sentence",
    },
    read_trees: {
        tree("(TOP (NN a)"): "{path}, line 3: brackets that are not closed: 1",
        tree("(TOP\n (NN a)))"): "closed that none opened",
        tree("text"): "'text' outside of brackets",
        tree("(TOP )"): "over no words",
        tree("(TOP (NN a)) (TOP (NN b))"): "a second root",
        tree("(TOP (-NONE- a))"): "no words except traces; write trees in",
        "\n \n": "{path} has no tree",
    },
    read_valid: {
        after(TALK, "{"): "{path}, line 2: this is no JSON",
        after(TALK, '{"instruction": "a"}'): "{path}, line 2: the last turn is no answer",
        after(TALK, '{"instruction": "a", "output": " "}'): "line 2: turn 2 is an empty answer",
    },
    lambda path: read_conversations(path, "train"): {
        '{"instruction": "a", "output": ""}\n': "has no line to learn from"
    },
    lambda path: read_preferences(path, "valid"): {
        preference({"prompt": "Hello?", "chosen": "good"}): '{path}, line 2: write {"prompt": text',
        preference({"chosen": "good", "rejected": "bad"}): "line 2: write",
        preference(prompt=ASKED + GOOD): "line 2: the last turn is not",
        preference(prompt=GOOD): "the prompt: turn 1, of role ass",
        preference(chosen=ASKED): "the last turn is of role 'user', no answer",
        preference(chosen=1): '"chosen" is neither a text',
        preference({"chosen": ASKED + GOOD, "rejected": GOOD}): '"chosen" and "rejected" differ be',
        preference(prompt="Who?", chosen=ASKED + GOOD, rejected=ASKED + BAD): (
            "the prompt differs from the turns before the last of"
        ),
        preference(prompt="Who?", chosen=INSTRUCTED + GOOD, rejected=INSTRUCTED + BAD): (
            "the prompt differs from the turns before the last of"
        ),
        preference(margin=0.3): "line 2: the key 'margin' is not read",
        preference(chosen="same", rejected="same"): "line 2: both answers are",
        preference(chosen=" "): 'line 2: "chosen" is an empty answ',
    },
    lambda path: read_preferences(path, "train"): {
        json.dumps(PREFERENCE | {"chosen": "bad"}): "has no line to learn from"
    },
    read_choices: {
        choice(answer=2): '{path}, line 2: "answer" is 2; write 0 to 1',
        choice(answer=True): '"answer" is True',
        choice(choices=["a"]): '"choices" are not two texts or more',
        choice(choices="ab"): 'write {"context": text',
        after(json.dumps(CHOICE) + "\n", "{"): "line 2: this is no JSON",
    },
}
"""How a file is read: its content: words of the message."""


def test_bad_content_is_named(tmp_path, assert_refused):
    table = {}
    for read, contents in READ.items():
        for content, words in contents.items():
            path = tmp_path / f"{len(table)}.txt"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            call = lambda read=read, path=path: read(str(path))  # noqa: E731
            table[f"{path.name} {content[:80]!r}"] = call, words.replace("{path}", str(path))
    assert_refused(table)


def test_compressed_files_are_whole(tmp_path, assert_refused):
    contents = {
        "plain.gz": b"plain text\n",
        "cut.gz": GZIP[:-12],
        "corrupt.gz": GZIP[:12] + b"\xff" * 8 + GZIP[20:],
        "checksum.gz": GZIP[:-8] + bytes(8),
        "plain.zst": b"plain text\n",
        "cut.zst": ZSTD[:-9],
        "corrupt.zst": ZSTD[:9] + bytes(9) + ZSTD[18:],
    }
    table = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        kind = "gzip" if name.endswith(".gz") else "zstd"
        words = f"{path} is not a complete {kind} file"
        table[name] = (lambda path=path: TextLines(str(path))), words
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b"", mtime=0))
    empty = lambda: TextLines(str(tmp_path / "empty.gz"))  # noqa: E731
    assert_refused(table | {"empty": (empty, "empty.gz is empty")})


def test_paths_that_cannot_be_read_are_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, content in (
        ("train.en", "one\n\nthree\n"),
        ("train.de", "\nzwei\n"),
        ("blank.de", "\nzwei\n\n"),
    ):
        (tmp_path / name).write_text(content)
    (tmp_path / "a.parquet").write_bytes(b"none")
    pq.write_table(pa.Table.from_pylist([{"prompt": "a"}]), tmp_path / "b.parquet")
    english, german, blank = (str(tmp_path / x) for x in ("train.en", "train.de", "blank.de"))

    def lines(name, **options):
        return lambda: TextLines(str(tmp_path / name), **options)

    def text(name, **fields):
        config = DataConfig(name="text", train_text=str(tmp_path / name), **fields)
        return lambda: open_split(config, "train")

    def talk(name):
        return lambda: read_valid(str(tmp_path / name))

    def both():
        return drop_blank(read_aligned(english, blank), "train", "en and de")

    assert_refused(
        {
            f"cannot read {tmp_path}/absent: ": lines("absent"),
            f"cannot read {tmp_path}/absent.gz: ": lines("absent.gz"),
            f"cannot read {tmp_path}: ": lines(""),
            f"did you mean {tmp_path}/train.en?": lines("train.enn"),
            "/dev/zero is not a regular file": lines("/dev/zero"),
            "/dev/zero is not a regular": lines("/dev/zero", once=True),
            "pipe is not a regular file; copy its content to one": lines("pipe"),
            "data.train_source: no file matches ": lambda: expand_paths(
                f"{tmp_path}/*.fr", "data.train_source"
            ),
            f"{english} has 3 lines but {german} has 2: ": lambda: read_aligned(english, german),
            "no line has text on both sides in en and de": both,
            "a.parquet as Parquet": talk("a.parquet"),
            'b.parquet, row 1: write {"instruction": text': talk("b.parquet"),
            "data.text_field is 'body', but ": text("train.en", text_field="body"),
            "data.valid_text is not set: text needs the path of a": lambda: open_split(
                DataConfig(name="text"), "valid"
            ),
        }
    )


def test_documents_need_text(tmp_path, assert_refused):
    contents = {
        "empty": (b"", "is empty"),
        "blank": (b"\n \r\n\t\n", "has no text"),
        "bytes": (b"one\nt\xffwo\n", "line 2: not UTF-8"),
    }
    table = {}
    for name, (content, words) in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        for unit in DOCUMENTS:
            call = lambda path=path, unit=unit: read_documents(str(path), unit)  # noqa: E731
            table[f"{name} {unit}"] = call, words
    assert_refused(table)


def test_blocks_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_JAX_ALLOW_ADDRESSES", raising=False)
    for name, content in (
        ("text.txt", b"a\nb\n"),
        ("bad.txt", b"\xff\xfe\n"),
        ("bad.jsonl", b'{"text": "a"}\n{"body": "b"}\n'),
        ("bad.parquet", b"none"),
        ("bad.gz", b"none"),
        ("empty.txt", b""),
        ("b.csv", b"text\na\n"),
    ):
        (tmp_path / name).write_bytes(content)
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "body.parquet")

    def blocks(path):
        config = DataConfig(block_megabytes=1e-4, documents="line")
        return open_blocks(config, [str(tmp_path / path) if "://" not in path else path])

    def documents(path):
        return lambda: blocks(path).documents(0)

    def split(**changes):
        text = {"name": "text", "train_text": str(tmp_path / "text.txt"), "block_megabytes": 1.0}
        return lambda: open_split(DataConfig(**text | changes), "train")

    changed = blocks("text.txt")
    (tmp_path / "text.txt").write_text("a\nb\nc\n")
    no_column = "no text in the column 'text' (columns: body)"
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(fsspec.core, "url_to_fs", None)
        for path in ("http://h/a.txt", "file:///a*.txt", "nowhere://bucket/a.txt"):
            assert_refused({"is no address that may be used": partial(blocks, path)})
        for path in ("zip://a.txt::s3://b/c", "simplecache::s3://a/b*"):
            assert_refused({"chains addresses": partial(blocks, path)})
    assert_refused(
        {
            "has changed: it had 4 bytes when this run started": lambda: changed.documents(0),
            "not UTF-8": documents("bad.txt"),
            f"a row after byte 0: {no_column}": documents("bad.jsonl"),
            f"cannot read {tmp_path}/bad.parquet": documents("bad.parquet"),
            f"cannot read {tmp_path}/bad.gz": documents("bad.gz"),
            "body.parquet has no column 'text' (data.text_field)": documents("body.parquet"),
            "no file matches": documents("*.md"),
            f"cannot read {tmp_path}/none.txt": documents("none.txt"),
            "is empty": documents("empty.txt"),
            "may extend over two blocks": split(documents="paragraph"),
            "cannot be combined with other sets": split(name="text,text"),
            "data.train_text is not set": split(train_text=None),
            "b.csv cannot be read in blocks": split(train_text=f"{tmp_path}/b.csv"),
            "data.text_field is 'body', but": split(text_field="body"),
        }
    )
