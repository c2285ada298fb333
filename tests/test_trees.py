# SPDX-License-Identifier: Apache-2.0
"""Constituency trees: brackets, cleaning, tokens and the lookahead."""

from functools import partial

import numpy as np

from tests.refusals import assert_refused
from transformer_jax import trees


def test_a_walk_yields_the_nodes_and_the_ends_of_constituents():
    tree = trees.parse_tree("(TOP (NP (DT The) (NN end)) (. .))")
    steps = [node.label if node else ")" for node in tree.walk()]
    assert steps == ["TOP", "NP", "DT", "NN", ")", ".", ")"]
    assert tree.leaves() == [("The", "DT"), ("end", "NN"), (".", ".")]
    assert tree.words() == ["The", "end", "."]


def test_a_tree_is_written_as_it_was_read():
    deep = "(X " * 5000 + "(NN a)" + ")" * 5000  # deeper than Python recurses
    for text in ("(TOP (S (NP (DT The) (NN house)) (. .)))", "(NN dog)", deep):
        assert str(trees.parse_tree(text)) == text


def test_joined_trees_are_under_the_first_root():
    parts = [trees.parse_tree(f"(TOP (NP (NN {word})))") for word in "ab"]
    assert trees.join_trees(parts[:1]) is parts[0]
    assert str(trees.join_trees(parts)) == "(TOP (NP (NN a)) (NP (NN b)))"
    leaf = trees.parse_tree("(NN c)")
    assert str(trees.join_trees([*parts, leaf])) == "(TOP (NP (NN a)) (NP (NN b)) (NN c))"
    assert str(trees.join_trees([leaf, leaf])) == "( (NN c) (NN c))"


def test_white_space_between_parts_has_no_meaning():
    tree = "(TOP (S (NP (DT The) (NN house))  (VP (VBZ is)\t(ADJP (JJ big)))(. .)))"
    spread = "( TOP\n  (S\n   (NP(DT\n The )\r\n(NN house) ) (VP (VBZ is) (ADJP (JJ big))) (. .)))"
    assert trees.parse_tree(tree) == trees.parse_tree(spread)
    unlabelled = trees.parse_tree(f" ( {tree[5:-1]} ) ")  # like the Treebank's outermost node
    assert unlabelled.label == "" and unlabelled.children == trees.parse_tree(tree).children
    assert trees.parse_tree(str(unlabelled)) == unlabelled


def test_escaped_brackets_and_signs_stay():
    tree = "(X (-LRB- -LRB-) (NN a/b) (: --) (`` ``) (NN x=y) (-RRB- -RRB-) (NN a\u00a0b))"
    words, tags = zip(*trees.parse_tree(tree).leaves(), strict=True)
    assert words == ("-LRB-", "a/b", "--", "``", "x=y", "-RRB-", "a\u00a0b")
    assert tags == ("-LRB-", "NN", ":", "``", "NN", "-RRB-", "NN")
    assert str(trees.parse_tree(tree)) == tree


def test_texts_and_tokens_that_are_not_one_tree_are_refused():
    texts = {
        "": "no tree",
        "(S (NN a)": "brackets that are not closed: 1",
        "(S (NN a)))": "a bracket is closed that none opened",
        "(S (NN a)) (S (NN b))": "a second root after the end",
        "(NN a) (NN b)": "a second root after the end",
        "(NN a) b": "'b' outside of brackets",
        ")": "closed that none opened",
        "(S ())": "( ) is over no words",
        "(S (NN))": "(NN ) is over no words",
        "(TOP)": "(TOP ) is over no words",
        "(S (NN a b))": "'a' is neither a label nor in a leaf",
        "(S (NP (NN a)) b)": "'b' is neither",
        "((NN a) S)": "'S' is neither",
    }
    assert_refused({t: (partial(trees.parse_tree, t), words) for t, words in texts.items()})
    tokens = {
        "1 of 2 words have no tag": "(TOP NN",
        "brackets that are not closed: 1": "(TOP NN NN",
        "more tags than 2 words": "(TOP NN NN NN )",
        "closed that none opened": "(TOP NN NN ) )",
        "over no words": "(TOP (NP ) NN NN )",
        "a second root": "NN NN",
    }
    restore = partial(trees.tree_from_tokens, words=["a", "b"])
    assert_refused({words: partial(restore, t.split(" ")) for words, t in tokens.items()})


def test_each_tree_begins_on_a_new_line():
    lines = ["", "( (S", "   (NN a)", "))", "  ", "(TOP (NN b))", "(TOP (NN c))", "(X"]
    assert list(trees.tree_line_spans(lines)) == [(1, 4), (5, 6), (6, 7), (7, 8)]
    lines = ["text", ")", "(NN a))", "(NN b)"]
    assert list(trees.tree_line_spans(lines)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert list(trees.tree_line_spans(["", " "])) == []


def test_brackets_among_words_are_escaped():
    assert trees.split_words(" She  (said)\t( \n") == ["She", "-LRB-said-RRB-", "-LRB-"]
    assert trees.split_words("a\u00a0b") == ["a\u00a0b"]
    assert trees.split_words(" ") == []


def test_traces_are_removed_with_constituents_left_empty():
    tree = trees.parse_tree(
        "( (S (NP-SBJ-1 (NN who)) (VP (VBZ wins) (SBAR (-NONE- 0) (S (NP (-NONE- *T*-1)))))))"
    )
    assert str(trees.without_traces(tree)) == "( (S (NP-SBJ-1 (NN who)) (VP (VBZ wins))))"
    assert trees.without_traces(trees.parse_tree("(S (NP (-NONE- *)))")) is None


def test_labels_lose_their_function_tags():
    tree = "({} (-LRB- -LRB-) (NP-TMP (PRP$ my) (-NONE- *-1)))"
    categories = {"NP-SBJ-1": "NP", "NP=2": "NP", "NP-SBJ=1": "NP", "ADVP|PRT": "ADVP", "": ""}
    for label, category in categories.items():
        cleaned = trees.without_function_tags(trees.parse_tree(tree.format(label)))
        assert str(cleaned) == tree.format(category).replace("NP-TMP", "NP")
    special = trees.parse_tree("(-LRB- (-NONE- (NN a)))")
    assert trees.without_function_tags(special) == special


def drawn_tree(rng, depth=0):
    """A random tree, with unary chains and leaves at any depth."""
    if depth == 6 or rng.random() < 0.3:
        return trees.Tree(str(rng.choice(["NN", "VB", ".", "-LRB-"])), word=f"w{rng.integers(9)}")
    children = (drawn_tree(rng, depth + 1) for _ in range(rng.integers(1, 4)))
    return trees.Tree(str(rng.choice(["NP", "VP", "", "TOP"])), tuple(children))


def test_tokens_are_brackets_with_labels_and_tags():
    tree = trees.parse_tree("(TOP (NP (DT The) (NN house)))")
    assert trees.tree_to_tokens(tree) == ["(TOP", "(NP", "DT", "NN", ")", ")"]
    assert trees.tree_to_tokens(trees.parse_tree("( (S (NN a)))")) == ["(", "(S", "NN", ")", ")"]


def test_tokens_and_words_restore_the_tree():
    rng = np.random.default_rng(0)
    drawn = [drawn_tree(rng) for _ in range(150)]
    assert any(tree.word is not None for tree in drawn)
    for tree in drawn:
        tokens = trees.tree_to_tokens(tree)
        assert trees.tree_from_tokens(tokens, tree.words()) == tree
        assert trees.parse_tree(str(tree)) == tree
        assert trees.without_lookahead(trees.with_lookahead(tokens, tree.words())) == tokens


def test_with_a_lookahead_each_word_comes_before_the_brackets_in_front_of_it():
    tree = trees.parse_tree("(TOP (S (NP (DT The) (NN end)) (VP (VBZ comes))))")
    tokens = trees.with_lookahead(trees.tree_to_tokens(tree), tree.words())
    assert " ".join(tokens) == "/The DT (TOP (S (NP /end NN /comes VBZ ) (VP / ) ) )"
    assert " ".join(trees.with_lookahead(["NN"], ["a"])) == "/a NN /"
