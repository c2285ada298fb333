import pytest

from transformer_jax.trees import parse_tree, split_words, tree_lines


def test_white_space_between_parts_says_nothing():
    tree = "(TOP (S (NP (DT The) (NN house))  (VP (VBZ is)\t(ADJP (JJ big)))(. .)))"
    spread = "( TOP\n  (S\n   (NP(DT\n The )\r\n(NN house) ) (VP (VBZ is) (ADJP (JJ big))) (. .)))"
    assert parse_tree(tree) == parse_tree(spread)
    unlabelled = parse_tree(f" ( {tree[5:-1]} ) ")  # as the Treebank's outermost node
    assert unlabelled.label == "" and unlabelled.children == parse_tree(tree).children
    assert parse_tree(str(unlabelled)) == unlabelled


def test_escaped_brackets_and_signs_stay_as_they_are():
    tree = "(X (-LRB- -LRB-) (NN a/b) (: --) (`` ``) (NN x=y) (-RRB- -RRB-) (NN a\u00a0b))"
    words, tags = zip(*parse_tree(tree).leaves(), strict=True)
    assert words == ("-LRB-", "a/b", "--", "``", "x=y", "-RRB-", "a\u00a0b")
    assert tags == ("-LRB-", "NN", ":", "``", "NN", "-RRB-", "NN")
    assert str(parse_tree(tree)) == tree


@pytest.mark.parametrize(
    "tree, problem",
    [
        ("", "no tree"),
        ("(S (NN a)", "brackets that are not closed: 1"),
        ("(S (NN a)))", "a bracket is closed that none opened"),
        ("(S (NN a)) (S (NN b))", "a second root behind the end"),
        ("(NN a) (NN b)", "a second root behind the end"),
        ("(NN a) b", "'b' outside of brackets"),
        ("NN", "'NN' outside of brackets"),
        (")", "closed that none opened"),
        ("(S ())", r"\( \) is over no words"),
        ("(S (NN))", r"\(NN \) is over no words"),
        ("(TOP)", r"\(TOP \) is over no words"),
        ("(S (NN a b))", "'a' is neither a label nor in a leaf"),
        ("(S (NP (NN a)) b)", "'b' is neither"),
        ("((NN a) S)", "'S' is neither"),
        ("(S a (NN b))", "'a' is neither"),
    ],
)
def test_what_is_not_one_tree_is_an_error(tree, problem):
    with pytest.raises(ValueError, match=problem):
        parse_tree(tree)


def test_trees_stand_on_lines_of_their_own():
    lines = ["", "( (S", "   (NN a)", "))", "  ", "(TOP (NN b))", "(TOP (NN c))", "(X"]
    assert list(tree_lines(lines)) == [(1, 4), (5, 6), (6, 7), (7, 8)]
    assert list(tree_lines(["text", ")", "(NN a))", "(NN b)"])) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert list(tree_lines(["", " "])) == []


def test_brackets_among_words_are_written_as_trees_have_them():
    assert split_words(" She  (said)\t( \n") == ["She", "-LRB-said-RRB-", "-LRB-"]
    assert split_words("a\u00a0b") == ["a\u00a0b"]
    assert split_words(" ") == []
