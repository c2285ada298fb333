"""A constituency tree. Nothing here recurses, so that a tree may be as deep as it likes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """A node with all that is below it: a leaf has a word, a constituent has children.

    Attributes:
      label: of a leaf the tag of its word; "" where there is none, as the Penn Treebank's outermost
        brackets have none.
      children: from left to right; at least one, or none of a leaf.
      word: of a leaf; None for a constituent.
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def walk(self) -> Iterator["Tree | None"]:
        """The nodes, each before those below it, with None where a constituent ends."""
        waiting: list[Tree | None] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node is not None and node.word is None:
                waiting += (None, *reversed(node.children))

    def leaves(self) -> list[tuple[str, str]]:
        """(word, tag) of each leaf, from left to right."""
        return [(node.word, node.label) for node in self.walk() if node and node.word is not None]

    def words(self) -> list[str]:
        """The words, from left to right."""
        return [word for word, _ in self.leaves()]

    def __str__(self) -> str:
        """The tree in brackets, on one line: (TOP (NP (DT The) (NN house)))."""
        parts = []
        for node in self.walk():
            if node is None:
                parts.append(")")
            else:
                parts.append(f" ({node.label}" + ("" if node.word is None else f" {node.word})"))
        return "".join(parts).removeprefix(" ")


class Growing:
    """A tree that grows from left to right. What would be no tree raises ValueError."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[Tree]]] = []
        self.tree: Tree | None = None
        """The whole tree, once it is grown."""

    @property
    def depth(self) -> int:
        """How many constituents are open."""
        return len(self._open)

    def open(self, label: str) -> None:
        """Begins a constituent."""
        self._require_place()
        self._open.append((label, []))

    def leaf(self, tag: str, word: str) -> None:
        """Adds a word."""
        self._require_place()
        self._add(Tree(tag, word=word))

    def close(self) -> None:
        """Ends the innermost open constituent."""
        if not self._open:
            raise ValueError("a bracket is closed that none opened")
        label, children = self._open.pop()
        if not children:
            raise ValueError(f"({label} ) is over no words")
        self._add(Tree(label, tuple(children)))

    def whole(self) -> Tree:
        """The tree; ValueError where it is not whole."""
        if self._open:
            raise ValueError(f"brackets that are not closed: {self.depth}")
        if self.tree is None:
            raise ValueError("no tree")
        return self.tree

    def _require_place(self) -> None:
        if self.tree is not None:
            raise ValueError("a second root behind the end of the tree")

    def _add(self, node: Tree) -> None:
        if self._open:
            self._open[-1][1].append(node)
        else:
            self.tree = node


def joined(parts: Sequence[Tree]) -> Tree:
    """One tree over the words of several: all they have below their roots, below the first root."""
    first, *others = parts
    if not others:
        return first
    children = [child for tree in parts for child in (tree.children or (tree,))]
    return Tree(first.label if first.children else "", tuple(children))
