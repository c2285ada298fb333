import numpy as np
import pytest

from transformer_jax.trees import (
    Tree,
    from_tokens,
    parse_tree,
    to_tokens,
    with_lookahead,
    without_lookahead,
)


def drawn_tree(rng, depth=0):
    """A random tree, with unary chains and leaves at any depth."""
    if depth == 6 or rng.random() < 0.3:
        return Tree(str(rng.choice(["NN", "VB", ".", "-LRB-"])), word=f"w{rng.integers(9)}")
    children = (drawn_tree(rng, depth + 1) for _ in range(rng.integers(1, 4)))
    return Tree(str(rng.choice(["NP", "VP", "", "TOP"])), tuple(children))


def test_tokens_are_brackets_with_labels_and_tags():
    tree = parse_tree("(TOP (NP (DT The) (NN house)))")
    assert to_tokens(tree) == ["(TOP", "(NP", "DT", "NN", ")", ")"]
    assert to_tokens(parse_tree("( (S (NN a)))")) == ["(", "(S", "NN", ")", ")"]


def test_tokens_and_words_give_the_tree_back():
    rng = np.random.default_rng(0)
    trees = [drawn_tree(rng) for _ in range(300)]
    assert any(tree.word is not None for tree in trees)
    for tree in trees:
        assert from_tokens(to_tokens(tree), tree.words()) == tree
        assert parse_tree(str(tree)) == tree


def test_a_lookahead_reads_each_word_before_the_brackets_in_front_of_it():
    tree = parse_tree("(TOP (S (NP (DT The) (NN end)) (VP (VBZ comes))))")
    tokens = with_lookahead(to_tokens(tree), tree.words())
    assert " ".join(tokens) == "/The DT (TOP (S (NP /end NN /comes VBZ ) (VP / ) ) )"
    assert " ".join(with_lookahead(["NN"], ["a"])) == "/a NN /"


def test_a_lookahead_loses_nothing():
    rng = np.random.default_rng(1)
    for tree in (drawn_tree(rng) for _ in range(300)):
        tokens = to_tokens(tree)
        assert without_lookahead(with_lookahead(tokens, tree.words())) == tokens


@pytest.mark.parametrize(
    "tokens, problem",
    [
        ("(TOP NN", "1 of 2 words have no tag"),
        ("(TOP NN NN", "brackets that are not closed: 1"),
        ("(TOP NN NN NN )", "more tags than 2 words"),
        ("(TOP NN NN ) )", "closed that none opened"),
        ("(TOP (NP ) NN NN )", "over no words"),
        ("NN NN", "a second root"),
    ],
)
def test_other_tokens_are_no_tree(tokens, problem):
    with pytest.raises(ValueError, match=problem):
        from_tokens(tokens.split(" "), ["a", "b"])
