# SPDX-License-Identifier: Apache-2.0
"""Public sets: the splits of each, and what cannot be opened. Multi30k: `test_sources.py`."""

import json

import pytest

from tests.data.writing import write
from tests.refusals import assert_refused
from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.public import GLUE_TASKS, HELD_OUT_BOOKS, assign_splits
from transformer_jax.data.sources import SOURCES, open_split
from transformer_jax.errors import UserError

PAIRS = [(f"Sentence {n}.", f"Satz {n}.") for n in range(1000)]


def test_pairs_that_share_a_side_are_in_the_same_split():
    # One sentence with three translations; one of them translates another sentence too.
    def splits_of(n):
        chain = [("Hi, {}!", "Hallo {}!"), ("hi {}", "Tag {}."), ("Bye {}.", "TAG {}")]
        chain += [("Bye {}!", "Servus {}")]
        return assign_splits((english.format(n), german.format(n)) for english, german in chain)

    groups = [splits_of(n) for n in range(300)]
    assert all(len(set(splits)) == 1 for splits in groups)
    assert {splits[0] for splits in groups} == {"train", "valid", "test"}
    assert groups == [splits_of(n) for n in range(300)]


def test_some_percent_are_held_out_but_no_large_group():
    splits = assign_splits(PAIRS)
    for split in ("valid", "test"):
        assert 5 <= splits.count(split) <= 40
    for n in range(200):
        large = [(f"Go {n}!", f"Geh {n}, {m}") for m in range(21)]
        assert set(assign_splits(large)) == {"train"}


@pytest.mark.parametrize("more", ["", "\tCC-BY 2.0 (France) Attribution: tatoeba.org"])
def test_the_export_is_split_in_either_direction(tmp_path, more):
    lines = "".join(f"{english}\t{german}{more}\n" for english, german in PAIRS)
    (tmp_path / "deu.txt").write_text(lines)
    found = []
    for split in ("train", "valid", "test"):
        config = DataConfig(name="tatoeba_de_en", dir=str(tmp_path))
        there = open_split(config, split)
        back = open_split(DataConfig(name="tatoeba_en_de", dir=str(tmp_path)), split)
        assert [(pair["target"], pair["source"]) for pair in back] == [
            (pair["source"], pair["target"]) for pair in there
        ]
        found += [(pair["target"], pair["source"]) for pair in there]
    assert sorted(found) == sorted(PAIRS)


def test_aligned_files_are_read_without_the_export(tmp_path):
    for language, line in (("de", "Ja.\n"), ("en", "Yes.\n")):
        write(tmp_path / f"valid.{language}.gz", line)
    config = DataConfig(name="tatoeba_de_en", dir=str(tmp_path))
    assert list(open_split(config, "valid")) == [{"source": "Ja.", "target": "Yes."}]
    with pytest.raises(UserError, match=r"neither train.de nor train.de.gz.*manythings.org"):
        open_split(config, "train")


@pytest.mark.parametrize("name", ["scan_simple", "scan_length", "scan_addprim_jump"])
def test_commands_are_read_and_some_are_held_out(tmp_path, name):
    lines = [f"IN: walk {n} times OUT: {' '.join(['I_WALK'] * n)}" for n in range(1, 41)]
    end = name.removeprefix("scan_")
    write(tmp_path / f"tasks_train_{end}.txt.gz", "".join(f"{line}\n" for line in lines))
    (tmp_path / f"tasks_test_{end}.txt").write_text("IN: jump OUT: I_JUMP \n")

    train, valid, test = (
        list(open_split(DataConfig(name=name, dir=str(tmp_path)), split))
        for split in ("train", "valid", "test")
    )
    assert test == [{"source": "jump", "target": "I_JUMP"}]
    assert len(train) == 38 and len(valid) == 2
    assert train[0] == {"source": "walk 2 times", "target": "I_WALK I_WALK"}
    held_out = {pair["source"] for pair in valid}
    assert not held_out & {pair["source"] for pair in train}


def test_an_invalid_line_is_named(tmp_path):
    (tmp_path / "tasks_test_simple.txt").write_text("IN: jump OUT: I_JUMP\njump\tI_JUMP\n")
    (tmp_path / "deu.txt").write_text("Yes.\tJa.\nNo.\n")

    def open_set(name, split):
        return lambda: open_split(DataConfig(name=name, dir=str(tmp_path)), split)

    assert_refused(
        {
            "line 2: not": open_set("scan_simple", "test"),
            "deu.txt, line 2: not English<tab>German": open_set("tatoeba_de_en", "train"),
        }
    )


def texts(name, folder, split) -> list[str]:
    examples = open_split(DataConfig(name=name, dir=str(folder)), split)
    return [example["text"] for example in examples]


def test_training_has_nine_tenths_of_tiny_shakespeare(tmp_path):
    text = "".join(f"é{n}\n" for n in range(33))  # characters, not bytes, are counted
    write(tmp_path / "input.txt.gz", text)
    (train,) = texts("tiny_shakespeare", tmp_path, "train")
    (valid,) = texts("tiny_shakespeare", tmp_path, "valid")
    assert len(train) == int(0.9 * len(text)) and train + valid == text
    assert texts("tiny_shakespeare", tmp_path, "test") == [valid]


def test_a_split_of_wikitext2_is_one_document(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(f" \n = {split} = \n \n <unk> . \n")
        assert texts("wikitext2", tmp_path, split) == [f" \n = {split} = \n \n <unk> . \n"]


@pytest.fixture
def books(tmp_path):
    for name in ("carroll-alice.txt", "unknown.txt", "README.md", *HELD_OUT_BOOKS.values()):
        file = name if "." in name else f"{name}.txt"
        (tmp_path / file).write_text(f"[{name}]\n\nText.\n")
    write(tmp_path / "unknown.txt.gz", "Not read: it is there as plain text.\n")
    write(tmp_path / "blake-poems.txt.gz", "Poems.\n")
    return tmp_path


def test_each_book_is_a_document_and_two_are_held_out(books):
    assert texts("gutenberg", books, "train") == [
        "Poems.\n",
        "[carroll-alice.txt]\n\nText.\n",
        "[unknown.txt]\n\nText.\n",
    ]
    assert texts("gutenberg", books, "valid") == ["[chesterton-thursday]\n\nText.\n"]
    assert texts("gutenberg", books, "test") == ["[austen-persuasion]\n\nText.\n"]


def test_a_missing_book_is_named(books):
    (books / "austen-persuasion.txt").unlink()
    for split in ("train", "test"):
        with pytest.raises(UserError, match="neither austen-persuasion.txt nor .*gutenberg.org"):
            texts("gutenberg", books, split)


def test_held_out_books_alone_are_an_error(books):
    for name in ("carroll-alice.txt", "unknown.txt", "unknown.txt.gz", "blake-poems.txt.gz"):
        (books / name).unlink()
    with pytest.raises(UserError, match="no book to train on"):
        texts("gutenberg", books, "train")


@pytest.mark.parametrize("name", ["alpaca_data.jsonl.gz", "alpaca_data.json"])
def test_splits_of_alpaca_do_not_overlap(tmp_path, name):
    rows = [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(120)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    is_array = name.endswith(".json")  # as the authors of the set write it
    write(tmp_path / name, json.dumps(rows, indent=4) if is_array else lines)
    config = DataConfig(name="alpaca", dir=str(tmp_path))
    parts = {
        split: [
            conversation_from_json(one["turns"])[0].content for one in open_split(config, split)
        ]
        for split in ("train", "valid", "test")
    }
    assert parts["valid"] == ["i0", "i50", "i100"] and parts["test"] == ["i1", "i51", "i101"]
    assert sorted(sum(parts.values(), [])) == sorted(row["instruction"] for row in rows)
    assert len(parts["train"]) == 114


FILES = {
    "sst2": ("sentence\tlabel\n", 'a "fine film \t1\n', {"text": 'a "fine film ', "label": "1"}),
    "cola": ("", "gj04\t0\t*\tThey it.\n", {"text": "They it.", "label": "0"}),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        "1\t702\t703\tHe said.\tShe said.\n",
        {"text": "He said.", "pair": "She said.", "label": "1"},
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n",
        "0\tNo one came.\tOne came.\tnot_entailment\n",
        {"text": "No one came.", "pair": "One came.", "label": "not_entailment"},
    ),
}


@pytest.fixture
def glue(tmp_path):
    """Folder of GLUE with one line in each file."""
    for name, (header, line, _) in FILES.items():
        folder = tmp_path / GLUE_TASKS[name].folder
        folder.mkdir()
        for file in ("train.tsv", "dev.tsv"):
            (folder / file).write_text(header + line)
    (tmp_path / "MRPC" / "msr_paraphrase_test.txt").write_text(
        "\ufeff" + "".join(FILES["mrpc"][:2])
    )
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_the_folder_is_that_of_the_task_or_of_glue(glue, name):
    for folder in (glue, glue / GLUE_TASKS[name].folder):
        for split in SOURCES[name].splits:
            examples = open_split(DataConfig(name=name, dir=str(folder)), split)
            assert list(examples) == [FILES[name][2]]


def test_each_split_has_its_file(tmp_path):
    for split, stem in (("train", "train"), ("valid", "dev"), ("test", "test")):
        tree = f"(TOP (NP (JJ {split}) (NN word)))\n"
        write(tmp_path / f"{stem}.trees.gz", tree)
        examples = open_split(DataConfig(name="pos_gum", dir=str(tmp_path)), split)
        assert list(examples) == [{"text": f"{split} word", "tags": "JJ NN"}]


def test_trees_are_read(tmp_path):
    (tmp_path / "dev.trees").write_text("(TOP (UH Oh))\n")
    valid = open_split(DataConfig(name="gum_const", dir=str(tmp_path)), "valid")
    assert list(valid) == [{"source": "Oh", "target": "(TOP (UH Oh))"}]


def test_what_cannot_be_opened_is_refused(glue, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path / "empty"))

    def open_set(name, split, folder=glue):
        config = DataConfig(name=name, dir=folder and str(folder))
        return lambda: open_split(config, split)

    assert SOURCES["mrpc"].splits == ("train", "valid", "test")
    hidden = {
        f"{name} has no split 'test': choose one of train, valid": open_set(name, "test")
        for name in ("sst2", "cola", "rte")
    }
    assert_refused(
        hidden
        | {
            "CoLA/train.tsv has no column 'sentence'": open_set("sst2", "train", glue / "CoLA"),
            "line 1: 2 columns; expected 4: 'source', 'label', 'star'": open_set(
                "cola", "valid", glue / "SST-2"
            ),
            "script download_glue_data.py": open_set("rte", "valid", None),
            "neither dev.trees nor dev.trees.gz": open_set("pos_gum", "valid"),
        }
    )
