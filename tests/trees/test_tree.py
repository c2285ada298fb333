import pytest

from transformer_jax.trees import Growing, Tree, joined, parse_tree

TEXT = "(TOP (S (NP (DT The) (NN house)) (VP (VBZ is) (ADJP (JJ big))) (. .)))"


def test_a_walk_names_the_nodes_and_where_constituents_end():
    tree = parse_tree("(TOP (NP (DT The) (NN end)) (. .))")
    steps = [node.label if node else ")" for node in tree.walk()]
    assert steps == ["TOP", "NP", "DT", "NN", ")", ".", ")"]
    assert tree.leaves() == [("The", "DT"), ("end", "NN"), (".", ".")]
    assert tree.words() == ["The", "end", "."]


def test_a_tree_is_written_as_it_was_read():
    assert str(parse_tree(TEXT)) == TEXT
    assert str(Tree("NN", word="dog")) == "(NN dog)"


def test_a_tree_may_be_deeper_than_python_recurses():
    text = "(X " * 5000 + "(NN a)" + ")" * 5000
    assert str(parse_tree(text)) == text


def test_what_is_joined_stands_below_the_first_root():
    parts = [parse_tree(f"(TOP (NP (NN {word})))") for word in "ab"]
    assert joined(parts[:1]) is parts[0]
    assert str(joined(parts)) == "(TOP (NP (NN a)) (NP (NN b)))"
    leaf = parse_tree("(NN c)")
    assert str(joined([*parts, leaf])) == "(TOP (NP (NN a)) (NP (NN b)) (NN c))"
    assert str(joined([leaf, leaf])) == "( (NN c) (NN c))"


def test_what_grows_is_one_tree():
    growing = Growing()
    with pytest.raises(ValueError, match="no tree"):
        growing.whole()
    growing.leaf("NN", "a")
    for add in (lambda: growing.leaf("NN", "b"), lambda: growing.open("NP")):
        with pytest.raises(ValueError, match="a second root"):
            add()
