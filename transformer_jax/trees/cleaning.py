"""What treebanks annotate and parsers do not predict: traces and function tags."""

import re
from collections.abc import Callable

from transformer_jax.trees.tree import Tree

TRACE = "-NONE-"
"""The tag of an empty element, which stands for no word of the sentence."""

_FUNCTION = re.compile(r"[-=|].*")


def without_traces(tree: Tree) -> Tree | None:
    """The tree without leaves of tag -NONE-, and without what is empty then; None where nothing is
    left."""
    return _rebuilt(tree, lambda label: label, lambda leaf: leaf.label != TRACE)


def without_function_tags(tree: Tree) -> Tree:
    """NP-SBJ=1 becomes NP, and ADVP|PRT becomes ADVP; -LRB- and the tags of words stay."""
    found = _rebuilt(tree, _category, lambda leaf: True)
    assert found is not None
    return found


def _category(label: str) -> str:
    return label if label.startswith("-") else _FUNCTION.sub("", label)


def _rebuilt(
    tree: Tree, relabel: Callable[[str], str], keep: Callable[[Tree], bool]
) -> Tree | None:
    """The tree with other labels of its constituents, and without the leaves not kept."""
    open_nodes: list[tuple[str, list[Tree]]] = [("", [])]
    for node in tree.walk():
        if node is None:
            label, children = open_nodes.pop()
            if children:
                open_nodes[-1][1].append(Tree(relabel(label), tuple(children)))
        elif node.word is None:
            open_nodes.append((node.label, []))
        elif keep(node):
            open_nodes[-1][1].append(node)
    return open_nodes[0][1][0] if open_nodes[0][1] else None
