import pytest

from transformer_jax.trees import parse_tree, without_function_tags, without_traces


def test_traces_go_with_what_is_empty_then():
    tree = parse_tree(
        "( (S (NP-SBJ-1 (NN who)) (VP (VBZ wins) (SBAR (-NONE- 0) (S (NP (-NONE- *T*-1)))))))"
    )
    assert str(without_traces(tree)) == "( (S (NP-SBJ-1 (NN who)) (VP (VBZ wins))))"
    assert without_traces(parse_tree("(S (NP (-NONE- *)))")) is None


@pytest.mark.parametrize(
    "label, category",
    [
        ("NP-SBJ", "NP"),
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("NP-SBJ=1", "NP"),
        ("ADVP|PRT", "ADVP"),
        ("WHNP", "WHNP"),
        ("", ""),
    ],
)
def test_categories_alone_stay_of_labels(label, category):
    tree = "({} (-LRB- -LRB-) (NP-TMP (PRP$ my) (-NONE- *-1)))"
    cleaned = without_function_tags(parse_tree(tree.format(label)))
    assert str(cleaned) == tree.format(category).replace("NP-TMP", "NP")


def test_special_labels_stay():
    tree = parse_tree("(-LRB- (-NONE- (NN a)))")
    assert without_function_tags(tree) == tree
