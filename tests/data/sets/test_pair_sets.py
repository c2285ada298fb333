# SPDX-License-Identifier: Apache-2.0
"""Tatoeba: splits of the export, and aligned files. SCAN. Multi30k: `test_sources.py`."""

import pytest

from tests.data.writing import write
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.pair_sets import SCAN_SETS, assign_splits
from transformer_jax.data.sources import open_split
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


@pytest.mark.parametrize("name", SCAN_SETS)
def test_commands_are_read_and_some_are_held_out(tmp_path, name):
    lines = [f"IN: walk {n} times OUT: {' '.join(['I_WALK'] * n)}" for n in range(1, 41)]
    end = SCAN_SETS[name][1]
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
