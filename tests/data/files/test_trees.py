import pytest

from transformer_jax.data.files.trees import leaves


def test_leaves_are_words_with_their_tags():
    tree = "(TOP (S (NP (DT The) (NN house))  (VP (VBZ is)\t(ADJP (JJ big)))(. .)))"
    expected = [("The", "DT"), ("house", "NN"), ("is", "VBZ"), ("big", "JJ"), (".", ".")]
    assert leaves(tree) == expected
    assert leaves(f" ( {tree[5:-1]} ) ") == expected  # the Treebank's outermost node has no label


def test_escaped_brackets_and_signs_stay_as_they_are():
    tree = "(X (-LRB- -LRB-) (NN a/b) (: --) (`` ``) (NN x=y) (-RRB- -RRB-) (NN a\u00a0b))"
    words, tags = zip(*leaves(tree), strict=True)
    assert words == ("-LRB-", "a/b", "--", "``", "x=y", "-RRB-", "a\u00a0b")
    assert tags == ("-LRB-", "NN", ":", "``", "NN", "-RRB-", "NN")


@pytest.mark.parametrize(
    "tree, problem",
    [
        ("", "no tree"),
        ("(S (NN a)", "1 brackets are not closed"),
        ("(S (NN a)))", r"'\)' behind the end"),
        ("(S (NN a)) (S (NN b))", r"'\(' behind the end"),
        ("(NN a) b", "'b' behind the end"),
        ("NN", "'NN' outside of brackets"),
        (")", r"'\)' outside of brackets"),
        ("(S ())", r"\(\) is neither"),
        ("(S (NN))", r"\(NN\) is neither"),
        ("(S (NN a b))", r"\(NN a b\) is neither"),
        ("(S (NP (NN a)) b)", r"\(S \(...\) b\) is neither"),
        ("((NN a) S)", r"\(\(...\) S\) is neither"),
        ("(S a (NN b))", r"\(S a \(...\)\) is neither"),
    ],
)
def test_what_is_not_one_tree_is_an_error(tree, problem):
    with pytest.raises(ValueError, match=problem):
        leaves(tree)
