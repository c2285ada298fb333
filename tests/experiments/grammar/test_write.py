# SPDX-License-Identifier: Apache-2.0
"""The text that the package ships: what the grammar writes, and what its splits promise."""

import gzip
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from experiments.grammar import nouns, verbs
from experiments.grammar.splits import SPLITS, PairStream, held_out_combinations
from experiments.grammar.write import write
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets import embedded
from transformer_jax.data.sources import open_split

SIDES = {"source": "en", "target": "de"}.items()
SHIPPED = Path(embedded.__file__).with_name("embedded_text")
NOUN = {noun.english: noun for noun in nouns.NOUNS}
VERB = {verb.name: verb for verb in (*verbs.OBJECT_VERBS, *verbs.GIVING_VERBS)}


@pytest.fixture(scope="module")
def splits():
    return {split: open_split(DataConfig(), split) for split in SPLITS}


def unpacked(folder):
    """Another version of zlib may pack the same text otherwise."""
    return {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}


def test_the_shipped_text_is_written_again_bit_for_bit(tmp_path):
    write(tmp_path, size=20_000, seed=0)
    assert unpacked(tmp_path) == unpacked(SHIPPED)


def test_any_size_and_seed_is_text_for_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.grammar.write.HELD_OUT_SIZE", 2)
    write(tmp_path / "new", size=30, seed=1)
    files = {f"train_{side}": f"{tmp_path}/new/train.{language}.gz" for side, language in SIDES}
    pairs = open_split(DataConfig(name="parallel_text", **files), "train")
    assert list(pairs) == PairStream(1).first("train", 30)
    assert all(path.read_bytes()[4:8] == bytes(4) for path in (tmp_path / "new").iterdir())


def words(pairs, side):
    """Without case: the first of a sentence has a capital."""
    return [word for pair in pairs for word in re.findall(r"\w+", pair[side].lower())]


@pytest.mark.parametrize("side", ["source", "target"])
def test_vocabulary_and_length(splits, side):
    """No sentence occurs twice."""
    sentences = [pair[side] for pairs in splits.values() for pair in pairs]
    assert len(set(sentences)) == len(sentences)
    counts = Counter(words(splits["train"], side))
    assert 400 <= len(counts) <= 700
    assert 8 <= counts.total() / len(splits["train"]) <= 11
    assert max(len(pair[side].split()) for pair in splits["train"]) <= 25


def verb_forms(name):
    return {VERB[name].english, *VERB[name].english_present, *VERB[name].english_past}


def noun_forms(name):
    return {NOUN[name].english, NOUN[name].english_plural} - {""}


def test_held_out_combinations_never_meet_in_training(splits):
    """Though their words are frequent there. Surface forms alone decide here; verbs that share
    forms, as `look at`, are left aside."""
    where = defaultdict(set)
    for i, pair in enumerate(splits["train"]):
        for word in words([pair], "source"):
            where[word].add(i)
    distinct = [pair for pair in held_out_combinations(0) if " " not in pair[0]]
    assert len(distinct) > 40
    for verb, noun in distinct:
        with_verb = set().union(*(where[form] for form in verb_forms(verb)))
        with_noun = set().union(*(where[form] for form in noun_forms(noun)))
        assert not with_verb & with_noun, (verb, noun)
        assert min(len(with_verb), len(with_noun)) >= 50, (verb, noun)


def test_each_test_combination_has_a_held_out_pair(splits):
    held_out = held_out_combinations(0)
    for pair in splits["test_combinations"]:
        present = set(words([pair], "source"))
        assert any(verb_forms(v) & present and noun_forms(n) & present for v, n in held_out), pair
