"""Trees of the Penn Treebank's form, in brackets: (TOP (NP (DT The) (NN house)))."""

import re

_PART = re.compile(r"[()]|[^() \t]+")


def leaves(tree: str) -> list[tuple[str, str]]:
    """The leaves (TAG word) of one tree, as (word, tag), from left to right.

    Words and tags are given as they stand there, brackets as -LRB- and -RRB-. A node without a
    label, as the Treebank's outermost is, will do.

    Raises:
      ValueError: it is not one tree with balanced brackets and a word in each leaf.
    """
    found = []
    open_nodes: list[list[str | None]] = []  # of each its words so far; None: a node within
    ended = False
    for part in _PART.findall(tree):
        if ended:
            raise ValueError(f"{part!r} behind the end of the tree")
        if part == "(":
            if open_nodes:
                open_nodes[-1].append(None)
            open_nodes.append([])
        elif not open_nodes:
            raise ValueError(f"{part!r} outside of brackets")
        elif part == ")":
            if leaf := _leaf(open_nodes.pop()):
                found.append(leaf)
            ended = not open_nodes
        else:
            open_nodes[-1].append(part)
    if open_nodes:
        raise ValueError(f"{len(open_nodes)} brackets are not closed")
    if not ended:
        raise ValueError("no tree")
    return found


def _leaf(node: list[str | None]) -> tuple[str, str] | None:
    """The word and tag of a node that is a leaf; None for one with nodes within."""
    match node:
        case str(tag), str(word):
            return word, tag
    if None not in node or any(node[1:]):  # a label stands before all that is within
        inside = " ".join(part or "(...)" for part in node)
        raise ValueError(f"({inside}) is neither (TAG word) nor a node of others")
    return None
