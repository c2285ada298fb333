# SPDX-License-Identifier: Apache-2.0
from experiments.most_frequent_tag import MostFrequentTag
from experiments.parsing_baselines import FrequentStructures, RightBranching, filled
from transformer_jax.trees import parse_tree

TREES = [
    parse_tree(f"(TOP {tree})")
    for tree in (
        "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (PRP it))) (. .))",
        "(S (NP (NN home)) (VP (VBZ is) (ADJP (JJ far))))",
        "(S (NP (NN rain)) (VP (VBZ falls) (ADVP (RB here))))",
        "(NP (DT a) (JJ red) (NN dog))",
    )
]


def written(structure, tags):
    words = [f"w{i}" for i in range(len(tags))]
    return str(filled(structure, tags, words))


def test_right_branching_trees():
    of = RightBranching(TREES).of
    assert written(of(["NN"]), ["NN"]) == "(TOP (S (NN w0)))"
    assert written(of(["NN", "."]), ["NN", "."]) == "(TOP (S (NN w0)) (. w1))"
    tags = ["DT", "NN", "VBZ", "."]
    assert written(of(tags), tags) == "(TOP (S (DT w0) (VP (NN w1) (VBZ w2))) (. w3))"


def test_the_most_frequent_structure_of_tags_then_of_a_length():
    of = FrequentStructures(TREES).of
    tags = ["DT", "JJ", "NN"]
    assert written(of(tags), tags) == "(TOP (NP (DT w0) (JJ w1) (NN w2)))"
    of_this_length = {FrequentStructures([tree]).of(["RB"] * 3) for tree in TREES[1:]}
    assert of(["RB"] * 3) in of_this_length  # tags never seen together
    assert of(["NN"] * 9) is None


def test_the_most_frequent_tag_of_each_word():
    tagger = MostFrequentTag([("a", "DT"), ("a", "NN"), ("a", "DT"), ("b", "VB"), ("c", "VB")])
    assert [tagger.tag(word) for word in "abcd"] == ["DT", "VB", "VB", "VB"]
